"""Handing on: a trained encoder in the formats of other libraries, with a model card; nothing of it needs torch."""

from simretro.exports.export import FORMATS, export

__all__ = ["FORMATS", "export"]

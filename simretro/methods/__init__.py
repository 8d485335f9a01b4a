"""Published methods: their objective, their state, and the handles they give their user."""

from simretro.methods.handles import gen_synonyms, most_similar
from simretro.methods.simbert import SimBERT

__all__ = ["SimBERT", "gen_synonyms", "most_similar"]

"""Published methods: their objective, their state, and the handles they give their user."""

from simretro.methods.bi_encoder import BiEncoder
from simretro.methods.ccp import CCP
from simretro.methods.ccp_gaps import ccp_gaps
from simretro.methods.handles import gen_synonyms, most_similar
from simretro.methods.retromae import RetroMAE
from simretro.methods.simbert import SimBERT

__all__ = ["BiEncoder", "CCP", "RetroMAE", "SimBERT", "ccp_gaps", "gen_synonyms", "most_similar"]

"""What the command lines of all examples have in common: their help."""

import argparse

import pytest

import evaluate_retriever
import export_model
import libreoffice_help
import pretrain_ccp
import pretrain_retromae
import train_retriever
import train_simbert
from command_line import HelpFormatter

EXAMPLES = {
    "evaluate_retriever": evaluate_retriever.parse_arguments,
    "export_model": export_model.parse_arguments,
    "libreoffice_help": libreoffice_help.main,
    "pretrain_ccp": pretrain_ccp.parse_arguments,
    "pretrain_retromae": pretrain_retromae.parse_arguments,
    "train_retriever": train_retriever.parse_arguments,
    "train_simbert": train_simbert.parse_arguments,
}
TRAINING = ("pretrain_ccp", "pretrain_retromae", "train_retriever", "train_simbert")


@pytest.fixture
def parser_of(monkeypatch):
    """A function: name of an example -> its parser."""

    class Found(Exception):
        pass

    def parse_args(self, arguments=None):
        raise Found(self)

    def parser_of(name):
        with monkeypatch.context() as patch, pytest.raises(Found) as found:
            patch.setattr(argparse.ArgumentParser, "parse_args", parse_args)
            EXAMPLES[name]([])
        return found.value.args[0]

    return parser_of


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_option_has_a_help_text_and_no_default_that_tells_nothing(name, parser_of):
    parser = parser_of(name)
    assert [action.dest for action in parser._actions if not (action.help or "").strip()] == []
    told = " ".join(parser.format_help().split())
    for nonsense in ("default: None", "default: True", "default: False", "default: []", "default: )"):
        assert nonsense not in told
    assert all(line.count("default") <= 1 for line in parser.format_help().split("\n"))


@pytest.mark.parametrize("name", TRAINING)
def test_runs_are_saved_within_epochs_unless_told_otherwise(name, parser_of):
    """The first epoch of a large corpus is days long, or never ends: --max-steps."""
    assert parser_of(name).get_default("save_steps") == 500
    told = " ".join(parser_of(name).format_help().split())
    assert "save whenever so many steps are done, besides the ends of epochs; 0: only there (default: 500)" in told


def test_defaults_are_shown_as_they_are_typed():
    parser = argparse.ArgumentParser(formatter_class=HelpFormatter)
    parser.add_argument("--rate", type=float, default=1 / 30, help="of something, 5 %% or so")
    parser.add_argument("--ranks", type=int, nargs=2, default=[10, 100], help="two")
    parser.add_argument("--share", default="9%", help="of all")
    parser.add_argument("--none", help="nothing")
    parser.add_argument("--flag", action="store_true", help="yes or no")
    parser.add_argument("--own", default=3, help="default: see below")
    parser.add_argument("--zero", type=int, default=0, help="a number")
    lines = [" ".join(line.split()) for line in parser.format_help().split("\n")]
    for line in (
        "--rate RATE of something, 5 % or so (default: 0.0333333)",
        "--ranks RANKS RANKS two (default: 10 100)",
        "--share SHARE of all (default: 9%)",
        "--none NONE nothing",
        "--flag yes or no",
        "--own OWN default: see below",
        "--zero ZERO a number (default: 0)",
    ):
        assert line in lines

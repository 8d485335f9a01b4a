"""Sentences of many scripts: cut where they end and nowhere else, and nothing is lost."""

import builtins

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from simretro.data.sentences import SentenceSplitter, sentences_of


@pytest.mark.parametrize(
    "language, sentences",
    [
        ("en", ["Dr. Smith went to Washington, D.C. on Jan. 5.", "He paid $3.50 (approx. 2 EUR).", "Is it, e.g., so?"]),
        ("en", ['"Is it?" she asked.', "See www.example.com or version 2.0.1.", "Oh!", "No name..."]),
        ("en", ["1. First item.", "2. Second item.", "J. Smith wrote it.", "See Fig. 3 and p. 12."]),
        ("en", ["Use COM.MICROSOFT.T.TEST or A1.B2.", "Then a full stop."]),
        ("de", ["Am 5. Mai kam Dr. Müller z. B. nach Köln.", "Das ist gut."]),
        ("fr", ["M. Dupont est là.", "C'est bien !", "Vraiment ?"]),
        ("es", ["¿Cómo estás?", "¡Bien!", "El Sr. Pérez llegó."]),
        ("tr", ["Prof. Dr. Ali geldi.", "Saat 5.30'da.", "Tamam."]),
        ("ru", ["Это г. Москва.", "Хорошо!", "Он родился в 1990 г. в Омске."]),
        ("el", ["Τι κάνεις;", "Καλά."]),
        ("ko", ["안녕하세요.", "저는 학생입니다.", "네."]),
        ("hi", ["यह एक वाक्य है।", "डॉ. शर्मा आए।", "क्या हाल है?", "ठीक।"]),
        ("bn", ["এটি একটি বাক্য।", "এটি আরেকটি।"]),
        ("ar", ["كيف حالك؟", "د. أحمد هنا.", "شكرا!"]),
        ("ur", ["یہ ایک جملہ ہے۔", "یہ دوسرا ہے۔", "کیا؟"]),
        ("am", ["ይህ ነው።", "ያ ነው።"]),
        ("xx", ["A language that nobody knows.", "Yes."]),
    ],
)
def test_sentences_of_many_scripts(language, sentences):
    assert sentences_of(" ".join(sentences), language) == sentences
    assert sentences_of("\n\n".join(sentences), language) == sentences


@pytest.mark.parametrize(
    "language, sentences",
    [
        ("zh", ["你好。", "今天天气很好！", "版本3.5发布了。", "是吗？", "好"]),
        ("zh-CN", ["他说：“你好。世界！”", "然后走了。"]),
        ("ja", ["はい！", "行きます。", "OK?", "ええ。"]),
        ("hi", ["यह है।", "वह है।"]),
    ],
)
def test_no_white_space_is_needed_behind_some_marks(language, sentences):
    assert sentences_of("".join(sentences), language) == sentences


@pytest.mark.parametrize(
    "language, sentences",
    [
        ("en", ["Is it safe?", "No.", "The file is lost.", "Ok.", "Then go.", "Hm.", "That is odd."]),
        ("de", ["Geht das?", "Ja.", "Dann weiter."]),
        ("es", ["¿Vamos?", "Sí.", "Mañana salimos."]),
        ("sv", ["Vi.", "Går vi?", "Ja.", "Nu går vi."]),
        ("ru", ["Он тут?", "Да.", "Он тут."]),
        ("ko", ["됩니까?", "네.", "파일이 열립니다.", "배고프다 나.", "밥 먹자."]),
        ("mr", ["तो आला?", "हो.", "मी येतो."]),
        ("he", ["זה בטוח?", "לא.", "הקובץ אבד."]),
    ],
)
def test_a_short_word_is_a_sentence(language, sentences):
    assert sentences_of(" ".join(sentences), language) == sentences


@pytest.mark.parametrize(
    "language, sentences",
    [
        (
            "en",
            ["II. Two.", "VIII. Eight.", "xii. Twelve.", "A. One.", "b. Four.", "a) Two.", "(ii) Three.", "12. End."],
        ),
        ("en", ["Dr. Who came.", "Mr. He went."]),
        ("ru", ["Гл. 5.", "Св. Петр тут."]),
        ("ko", ["가. 첫째 항목.", "나. 둘째 항목."]),
        ("hi", ["क. पहला।", "ख. दूसरा।"]),
        ("bn", ["ডা. রহমান এসেছেন।", "ড. রহমান এসেছেন।"]),
        ("te", ["డా. రాజు వచ్చాడు."]),
    ],
)
def test_labels_and_titles_are_no_sentences(language, sentences):
    assert sentences_of(" ".join(sentences), language) == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["「はい。」と言った。", "次です。"],
        ["「え？」と聞いた。", "「行くよ！」って。", "終わり。"],
        ["彼は『はい。そう。』と言った。", "『おいで。』", "次。"],
        ["「彼は『はい。』と言った。そう。」と話した。", "次。"],
        ["「はい。」", "とても良い。", "「はい。」", "ところで次。"],
        ["「そう。」", "「いや。」", "彼だ。"],
        ["彼だ。", "『おいで。", "次。"],  # never closed: the quotation does not swallow the rest
    ],
)
def test_what_is_said_and_that_it_is(sentences):
    assert sentences_of("".join(sentences), "ja") == sentences


@pytest.mark.parametrize("language", ["pt-BR", "pt_BR", "PT"])
def test_variants_of_a_language_have_its_rules(language):
    assert sentences_of("O Sr. João veio. Sim.", language) == ["O Sr. João veio.", "Sim."]


@pytest.mark.parametrize("space", ["\xa0", "\x85", "\u2003", "\u2028", "\u2029", "\u3000"])
def test_wide_spaces(space):
    """sentencex alone panics here, with an exception that `except Exception` does not catch."""
    text = f"Plan{space}B{space}. It{space}works."
    sentences = sentences_of(text)
    assert sentences[-1] == ("works." if space == "\u2029" else f"It{space}works.")
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_lines():
    assert sentences_of("A wrapped\nline goes on. And\r\non.\r\n\r\nEnd") == [
        "A wrapped\nline goes on.",
        "And\r\non.",
        "End",
    ]
    assert sentences_of("Without a mark\n \nA paragraph\n\n- a point of a list\n- another\n") == [
        "Without a mark\n \nA paragraph",
        "- a point of a list",
        "- another",
    ]
    assert sentences_of("J.\n\nSmith 1.\n\nA.") == ["J.", "Smith 1.", "A."]  # a blank line is an end in any case
    assert sentences_of("") == sentences_of(" \n\n\t") == []


def test_what_has_no_letter_is_no_sentence():
    assert sentences_of("Wait. ... What? !! Now.") == ["Wait. ...", "What? !!", "Now."]
    assert sentences_of("... So.") == ["... So."] and sentences_of("?!") == ["?!"]


TEXTS = st.text(st.sampled_from("aB1 .!?\n。！।؟۔“”()«»…'-.éж好ü\r\u2029\u3000")) | st.text(
    st.characters(codec="utf-8"), max_size=60
)


@given(TEXTS, st.sampled_from(["en", "zh", "ja", "hi", "ar", "fr", "th", "xx"]))
@settings(max_examples=300)
@example("", "en")
@example("B\u2029.", "en")
@example("a.\u2028b.\x85c.\x0bd. \x1ce", "en")
def test_nothing_but_white_space_is_lost(text, language):
    sentences = sentences_of(text, language)
    assert "".join("".join(sentences).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() != "" for sentence in sentences)


def test_without_the_library(monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name == "sentencex":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r'pip install "simretro\[ccp\]".*`split`'):
        sentences_of("One. Two.")
    assert SentenceSplitter("en", lambda text, language: text.split(". "))("One. Two.") == ["One", "Two."]


def test_what_decides_the_cuts_is_known():
    english, german = SentenceSplitter("en").fingerprint(), SentenceSplitter("de").fingerprint()
    assert english == SentenceSplitter("en").fingerprint() != german and "sentencex" in english[1]
    assert "mended" in english[1]  # own rules decide, too
    assert SentenceSplitter("en", sentences_of).fingerprint() == ["en", "simretro.data.sentences", "sentences_of"]

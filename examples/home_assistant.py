"""Groups of sentences that mean the same, expanded from the voice commands of Home Assistant.

The package `home-assistant-intents` holds, for every intent, blocks of sentence templates with alternatives,
optional parts, rules and slots; `hassil` is the grammar that they are written in. A group is a set of
expansions of one block with the same slot values. For 3,300 groups of 8 Chinese sentences: 5 s on one core.

    groups = load_groups("zh-CN")
    train, validation, test = split_by_block(groups)
    share_recognised([("打开客厅的灯", "把客厅的灯打开")])  # 1.0: hassil would answer both with the same action
"""

import functools
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import home_assistant_intents
from hassil import Intents, recognize
from hassil.expression import Alternative, Expression, Group, ListReference, Permutation, RuleReference, TextChunk
from hassil.intents import IntentData, RangeSlotList
from hassil.numbers import get_rbnf_engine

# Where the listener is, for sentences that name no area ("turn on the light").
HERE = "(here)"
# Few numbers, so that groups differ in more than a number. No 2, 200, 2000: Chinese has two words for them.
NUMBERS = (1, 3, 5, 8, 10, 12, 15, 18, 20, 25, 26, 30, 40, 45, 50, 60, 70, 75, 90, 3000, 4000, 5000, 6500)
DRAWS_PER_TEXT = 6
# What a household fills in itself: for each list its values; the names stand under the domain they belong to.
HOUSEHOLD = {
    "zh-CN": {
        "area": "客厅/主卧/次卧/客房/厨房/书房/餐厅/阳台/浴室/走廊/玄关/衣帽间",
        "floor": "一楼/二楼/三楼/四楼/五楼/顶楼/阁楼",
        "name": {
            "light": "落地灯/阅读灯/壁灯/小夜灯/氛围灯/水晶灯",
            "switch": "热水器/咖啡机/饮水机/加湿器/电饭煲",
            "fan": "循环扇/落地扇/换气扇/排风扇",
            "media_player": "电视/音箱/投影仪/收音机/功放",
            "input_boolean": "访客模式/度假模式/勿扰模式",
            "climate": "中央空调/地暖/取暖器/壁挂炉",
            "cover": "纱帘/天窗/罗马帘/遮光帘/投影幕",
            "valve": "水阀/总阀/燃气阀/暖气阀",
            "lock": "前门/后门/入户门/保险柜/储物柜",
            "sensor": "温度计/湿度计/电表/水表/空气检测仪",
            "binary_sensor": "门磁/人体感应器/摄像头/雷达",
            "person": "小明/小红/爸爸/妈妈/爷爷/李老师",
            "todo": "待办清单/工作清单/家务清单/旅行清单",
            "vacuum": "小白/小黑/阿福/扫拖一体机",
            "lawn_mower": "大黄蜂/小绿/草坪卫士/铁牛",
            "scene": "观影/睡眠/离家/回家/聚会",
            "script": "早安/晚安/浇花/叫醒服务",
            "weather": "北京/上海/广州/成都/杭州",
        },
        "message": "开饭了/准备出门/电影开始了/快递到了/该睡觉了/有客人来了",
        "zone": "公司/学校/超市/健身房/医院/奶奶家",
        "timer_name": "煮面/泡茶/炖汤/烤面包/敷面膜/午睡",
        "timer_command": "关灯/叫我起床/拉上窗帘/播放音乐/提醒我喝水",
        "shopping_list_item": "牛奶/鸡蛋/苹果/洗衣液/纸巾/酱油",
        "todo_list_item": "交电费/取快递/订机票/写周报/洗车/预约牙医",
    },
    "en": {
        "area": "living room/bedroom/guest room/kitchen/office/dining room/balcony/bathroom/hallway/attic",
        "floor": "ground floor/first floor/second floor/top floor/basement",
        "name": {
            "light": "reading lamp/bedside lamp/chandelier/fairy lights",
            "switch": "water heater/coffee machine/rice cooker/dehumidifier",
            "fan": "box fan/tower fan/extractor",
            "media_player": "television/soundbar/projector/radio",
            "input_boolean": "guest mode/holiday mode/quiet mode",
            "climate": "air conditioner/floor heating/boiler",
            "cover": "skylight/roman blind/projector screen",
            "valve": "water valve/main valve/gas valve",
            "lock": "front door/back door/safe/locker",
            "sensor": "thermometer/hygrometer/power meter/water meter",
            "binary_sensor": "motion detector/camera/radar",
            "person": "Alice/Robert/Grandma/Mr Smith",
            "todo": "chores list/work list/travel list",
            "vacuum": "Rosie/Dusty/Robo",
            "lawn_mower": "Bumblebee/Lawnie/Goat",
            "scene": "movie night/bedtime/leaving home/party",
            "script": "good morning/good night/water the plants",
            "weather": "Berlin/London/Boston/Sydney",
            "button": "door bell/alarm bell",
            "input_button": "panic button/reset button",
        },
        "message": "dinner is ready/time to go/the movie starts/someone is at the door",
        "zone": "work/school/the gym/the hospital",
        "timer_name": "pasta/tea/soup/nap",
        "timer_command": "turn off the radio/wake me up/remind me to drink",
        "shopping_list_item": "milk/eggs/apples/soap/paper towels",
        "todo_list_item": "pay the bill/book a flight/wash the car/call the dentist",
        "search_query": "jazz/the evening news/rain sounds/a podcast",
    },
}
# Templates put an optional 的 or 楼 after a slot whose value may end with it.
DOUBLED = re.compile("(?<=的)的|(?<=楼)[楼层]")


@dataclass(frozen=True)
class SentenceGroup:
    """Sentences that mean the same.

    Attributes:
        texts: the sentences, no two equal, the first ones as different from one another as can be.
        intent: name of the intent, e.g. `HassTurnOn`.
        block: the template block, `intent/number`; a split must keep its groups together.
        slots: the value of each slot, e.g. `{"domain": "light", "area": "客厅"}`.
    """

    texts: tuple[str, ...]
    intent: str
    block: str
    slots: dict[str, Any]


def load_groups(
    language: str = "zh-CN",
    seed: int = 0,
    groups_per_block: int = 16,
    texts_per_group: int = 8,
    min_texts: int = 4,
) -> list[SentenceGroup]:
    """Expands the template blocks of a language into groups of sentences that mean the same.

    The work is bounded by the sizes asked for, however many sentences the templates stand for. A sentence that
    another block or other slot values yield as well is ambiguous and left out, so no text is in two groups.

    Args:
        language: a key of `HOUSEHOLD`.
        seed: int; the same seed gives the same groups in every process.
        groups_per_block: int; at most so many groups (slot values) of each block.
        texts_per_group: int; at most so many sentences in a group.
        min_texts: int; smaller groups are left out.

    Returns:
        The groups, in the order of the package's blocks.

    Raises:
        ValueError: if there is no household for `language`.
    """
    intents = _load_intents(language)
    blocks: dict[tuple, str] = {}
    groups, said_by = [], defaultdict(set)  # said_by: pattern of a sentence -> the blocks that it may come from
    for name, intent in intents.intents.items():
        for number, data in enumerate(intent.data):
            sampler = _BlockSampler(intents, data, random.Random(f"{seed}/{name}/{number}"))
            # Blocks that differ in the domain of their names only are one block to a split.
            block = blocks.setdefault((name, tuple(data.sentence_texts)), f"{name}/{number}")
            for slots, expansions in sampler.sample(groups_per_block, texts_per_group * DRAWS_PER_TEXT):
                groups.append((expansions, SentenceGroup((), name, block, slots)))
            for pattern in sampler.patterns:
                said_by[pattern].add((name, number))
    count = Counter(text for expansions, _ in groups for text in expansions)
    kept = []
    for expansions, group in groups:
        texts = [text for text, pattern in expansions.items() if count[text] == 1 and len(said_by[pattern]) == 1]
        if len(texts) >= min_texts:
            texts = _most_different(texts, texts_per_group)
            kept.append(SentenceGroup(tuple(texts), group.intent, group.block, group.slots))
    return kept


def split_by_block(
    groups: Sequence[SentenceGroup], held_out_share: float = 0.2, seed: int = 0
) -> tuple[list[SentenceGroup], list[SentenceGroup], list[SentenceGroup]]:
    """Splits groups so that all groups of a template block are on the same side.

    Sentences of one block share their wording: a split by sentence or by group would test what was trained on.

    Args:
        groups: what `load_groups` returns.
        held_out_share: float; share of the blocks to hold out, half for validation and half for the test.
        seed: int.

    Returns:
        (train, validation, test), three lists of groups, each in the given order.

    Raises:
        ValueError: if a part would be empty.
    """
    blocks = list(dict.fromkeys(group.block for group in groups))
    random.Random(seed).shuffle(blocks)
    held_out = round(held_out_share * len(blocks))
    if not 2 <= held_out < len(blocks):
        raise ValueError(
            f"`held_out_share` must leave a block or more to each of the three parts; received {held_out_share} "
            f"for {len(blocks)} blocks. Choose another share or load more groups."
        )
    part = {block: 1 + (i % 2) for i, block in enumerate(blocks[:held_out])}
    parts = [], [], []
    for group in groups:
        parts[part.get(group.block, 0)].append(group)
    return parts


def recognise(text: str, language: str = "zh-CN") -> tuple[str, dict[str, Any]] | None:
    """What hassil understands in a sentence: (intent, slots), or None.

    Args:
        text: str.
        language: a key of `HOUSEHOLD`.

    Returns:
        The intent's name and the value of each slot, as in `SentenceGroup`; None if no template matches.
    """
    result = recognize(text, _load_intents(language), intent_context={"area": HERE})
    return result and (result.intent.name, {name: entity.value for name, entity in result.entities.items()})


def share_recognised(pairs: Iterable[tuple[str, str]], language: str = "zh-CN") -> float:
    """Share of generated sentences that hassil recognises as the intent and slots of their source.

    Args:
        pairs: (source text, generated text).
        language: a key of `HOUSEHOLD`.

    Returns:
        float from 0 to 1.

    Raises:
        ValueError: if there are no pairs.
    """
    understand = functools.lru_cache(maxsize=None)(functools.partial(recognise, language=language))
    same = [understand(source) is not None and understand(source) == understand(other) for source, other in pairs]
    if not same:
        raise ValueError("`pairs` must hold at least one (source text, generated text); received none.")
    return sum(same) / len(same)


def character_bigrams(text: str) -> set[str]:
    """All pairs of neighbouring characters of a text."""
    return {text[i : i + 2] for i in range(len(text) - 1)}


def character_vocab(texts: Iterable[str]) -> dict[str, int]:
    """A vocabulary of single characters for a model that is trained from scratch.

    Args:
        texts: iterable of str.

    Returns:
        Token -> id: the five special tokens of BERT, the characters (lower case, without accents, as a lower-casing
        BERT tokenizer sees them) by frequency and code point, then `##` forms of those that continue a word.
    """
    count = Counter()
    for text in texts:
        count.update(unicodedata.normalize("NFD", text.lower()))
    characters = [c for c in count if not c.isspace() and unicodedata.category(c)[0] != "C"]
    characters = [c for c in characters if unicodedata.category(c) != "Mn"]
    characters.sort(key=lambda c: (-count[c], c))
    # Chinese characters and punctuation are words of their own; digits and letters are joined to longer ones.
    joined = [f"##{c}" for c in characters if c.isalnum() and "CJK UNIFIED" not in unicodedata.name(c, "")]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *characters, *joined]
    return {token: i for i, token in enumerate(tokens)}


@functools.lru_cache(maxsize=4)
def _load_intents(language: str) -> Intents:
    """The package's intents with the lists of a household filled in, wildcards included."""
    if language not in HOUSEHOLD:
        raise ValueError(
            f"`language` must be one of {sorted(HOUSEHOLD)}; received {language!r}. To use another language of "
            "home-assistant-intents, write its areas, names and so on into `HOUSEHOLD`."
        )
    definition = home_assistant_intents.get_intents(language)
    for settings in definition["lists"].values():
        if "multiplier" in settings.get("range", {}):
            # hassil 3.13 caches number words without the multiplier: "lower by twenty" would become +20.
            settings["range"]["words"] = False
    for name, words in HOUSEHOLD[language].items():
        if isinstance(words, str):
            values = words.split("/")
        else:
            values = [
                {"in": word, "out": word, "context": {"domain": domain}}
                for domain, domain_words in words.items()
                for word in domain_words.split("/")
            ]
        definition["lists"][name] = {"values": values}
    return Intents.from_dict(definition)


@dataclass
class _Expansion:
    """One expansion of a template: its text, its text with `{list}` for the household's words, its slots."""

    text: str = ""
    pattern: str = ""
    slots: dict[str, Any] = field(default_factory=dict)

    def append(self, text: str, pattern: str | None = None) -> None:
        self.text += text
        self.pattern += text if pattern is None else pattern


class _BlockSampler:
    """Draws random expansions of one template block."""

    def __init__(self, intents: Intents, block: IntentData, rng: random.Random):
        self.block, self.rng, self.language = block, rng, intents.language
        self.rules = {**intents.expansion_rules, **block.expansion_rules}
        self.lists = {**intents.slot_lists, **block.slot_lists}
        self.fixed_slots = dict(block.slots)
        if "area" in block.requires_context:
            self.fixed_slots["area"] = HERE
        self.patterns: set[str] = set()

    def sample(self, limit: int, draws: int) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
        """Yields up to `limit` different (slots, {text: pattern})."""
        seen = []
        for _ in range(2 * limit):  # values repeat where a slot has few
            values: dict[str, tuple] = {}
            found: dict[tuple, dict[str, str]] = defaultdict(dict)
            for draw in range(draws):
                expansion = self._expand(self.block.sentences[draw % len(self.block.sentences)].expression, values)
                self.patterns.add(expansion.pattern)
                found[tuple(sorted(expansion.slots.items()))][expansion.text] = expansion.pattern
            for slots, texts in found.items():  # more than one where a slot is optional
                if slots not in seen and len(seen) < limit:
                    seen.append(slots)
                    yield {**self.fixed_slots, **dict(slots)}, texts
            if len(seen) == limit or not values:
                return

    def _expand(self, expression: Expression, values: dict[str, tuple]) -> _Expansion:
        expansion = _Expansion()
        self._walk(expression, values, expansion)
        expansion.text = DOUBLED.sub("", " ".join(expansion.text.split()))
        expansion.pattern = DOUBLED.sub("", " ".join(expansion.pattern.split()))
        return expansion

    def _walk(self, expression: Expression, values: dict[str, tuple], expansion: _Expansion) -> None:
        if isinstance(expression, TextChunk):
            expansion.append(expression.original_text)
        elif isinstance(expression, RuleReference):
            self._walk(self.rules[expression.rule_name].expression, values, expansion)
        elif isinstance(expression, ListReference):
            if expression.slot_name not in values:
                values[expression.slot_name] = self._choose(expression.list_name)
            value, form, pattern = values[expression.slot_name]
            expansion.slots[expression.slot_name] = value
            if pattern is None:  # a list of the package, whose words are part of the language
                self._walk(form, values, expansion)
            else:
                expansion.append(self.rng.choice(form), pattern)
        elif isinstance(expression, Alternative):
            self._walk(self.rng.choice(expression.items), values, expansion)
        elif isinstance(expression, Group):
            items = expression.items
            if isinstance(expression, Permutation):
                items = self.rng.sample(items, len(items))
            for item in items:
                self._walk(item, values, expansion)
        else:
            raise TypeError(f"`expression` must be one of hassil's; received {expression!r}.")

    def _choose(self, list_name: str) -> tuple[Any, Any, str | None]:
        """A value of a list, the forms that it can take in a text, and what stands for it in a pattern."""
        slot_list = self.lists[list_name]
        if isinstance(slot_list, RangeSlotList):
            return self._choose_number(slot_list)
        domains = self.block.requires_context.get("domain")
        choices = [v for v in slot_list.values if not (domains and v.context) or v.context["domain"] in domains]
        choice = self.rng.choice(choices)
        if list_name not in HOUSEHOLD[self.language]:
            return choice.value_out, choice.text_in, None
        pattern = f"{{{list_name}/{choice.context['domain']}}}" if choice.context else f"{{{list_name}}}"
        return choice.value_out, [choice.text_in.original_text], pattern

    def _choose_number(self, slot_list: RangeSlotList) -> tuple[float, list[str], str]:
        number = self.rng.choice([n for n in NUMBERS if n in slot_list.get_numbers()])
        forms = [str(number)]
        if slot_list.words:
            engine = get_rbnf_engine(slot_list.words_language or self.language)
            forms.append(engine.format_number(number).text_by_ruleset["spellout-cardinal"])
        return number * (slot_list.multiplier or 1), forms, "{number}"


def _most_different(texts: Sequence[str], limit: int) -> list[str]:
    """Picks texts one by one, each time the one that shares fewest bigrams with its nearest picked one."""
    bigrams = [character_bigrams(text) for text in texts]
    nearest = [0.0] * len(texts)
    left = list(range(len(texts)))
    picked: list[str] = []
    while left and len(picked) < limit:
        index = min(left, key=nearest.__getitem__)  # the first of equals: the order of drawing decides
        left.remove(index)
        picked.append(texts[index])
        for other in left:
            union = len(bigrams[index] | bigrams[other])
            shared = len(bigrams[index] & bigrams[other]) / max(1, union)
            nearest[other] = max(nearest[other], shared)
    return picked

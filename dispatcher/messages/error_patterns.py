"""Detects the kind of failure in a tool's error text, if it is unambiguous.

An error may also name things such as an order or an argument: `order 14290` is not status 429, and
`timeout must be a number` is not a timeout. So a pattern is a phrase of whole words, or a code
beside the word that identifies it, and does not match if it is negated. Tools write in any
language.
"""

import re

_LONGEST = 4_000
"""How many characters are searched: a tool may put a whole log into its error."""

_CODE = (
    r"\b(?:https?(?:/[\d.]+)?|status(?:[ _-]?code)?|error(?:[ _-]?code)?)"
    r"(?: is| was| of)?\W{0,3}"
)
_DENIED = re.compile(
    r"(?:\b(?:no|not|never|without|neither|nor)|n't)(?:\s+\w+){0,2}\s+$|[不未没无]有?$"
)
_A_SETTING = (
    r"(?!\s*(?:=|:\s*\d|must|should|needs?\b|has to|cannot|is (?:not|too|missing|an?\b|required)|"
    r"parameters?|arguments?|options?|values?|settings?|fields?|limits?|seconds))"
)


def _words(*phrases: str) -> str:
    joined = "|".join(phrases)
    return rf"\b(?:{joined})\b"


def _pattern(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


_SYMPTOMS: tuple[tuple[str, re.Pattern[str]], ...] = (
    (
        "rate",
        _pattern(
            _words(
                r"too many requests",
                r"rate[ -]?limited",
                r"rate[ _-]?limit[ _-]?(?:is |was |has been )?(?:exceeded|reached|hit|error)",
                r"(?:exceeded|exceeds|reached|hit|over) (?:your |the |our |its )?(?:\w+ )?"
                r"rate[ -]?limits?",
                r"quota (?:is |was |has been )?(?:exceeded|exhausted|reached)",
                r"(?:exceeded|exceeds) (?:your |the )?(?:\w+ )?quota",
                r"throttled|throttling(?:exception| error)?",
            ),
            _CODE + r"429\b",
            r"(?<![\w.,$€#-])429\b\W{0,3}(?:too many|client error)",
            r"请求过于频繁|请求过多|请求太频繁|被限流",
        ),
    ),
    (
        "connection",
        _pattern(
            _words(
                r"connection (?:was |has been )?(?:refused|reset|aborted|closed by|timed[ -]out)",
                r"connect(?:ion)? ?time-?out",
                r"econn(?:refused|reset|aborted)",
                r"name or service not known",
                r"name resolution",
                r"getaddrinfo failed",
                r"network is unreachable",
                r"no route to host",
                r"(?:could not|cannot|can't|couldn't|failed to|unable to) (?:re)?connect",
                r"failed to establish a (?:new )?connection",
                r"(?:service (?:is )?(?:temporarily )?unavailable|bad gateway)",
            ),
            _CODE + r"50[23]\b",
            r"连接被拒绝|拒绝连接|连接被重置|无法连接|连接失败",
        ),
    ),
    (
        "slow",
        _pattern(
            _words(r"timed[ -]out", r"etimedout", r"deadline exceeded", r"took too long"),
            r"Time-?out(?:Error|Exception|Expired)\b",
            _words(
                r"(?:read|write|gateway|request|response|operation|query|statement|execution|lock)"
                r"(?: wait)?[ _]?time-?out",
                r"time-?out (?:was )?(?:exceeded|expired|reached|after|while|waiting|occurred)",
            )
            + _A_SETTING,
            r"(?:^|: )\W*time-?out\W*$",
            r"^time-?out: (?!\d)",
            _CODE + r"(?:408|504)\b",
            r"超时(?!参数|时间|设置|选项|值)",
        ),
    ),
    (
        "permission",
        _pattern(
            _words(
                r"permission[ _]?denied|permissionerror",
                r"access (?:is |was )?denied",
                r"eacces|eperm",
                r"operation not permitted",
                r"unauthorized|not authori[sz]ed",
                r"(?:do not|don't|does not|doesn't) have (?:the )?(?:\w+ )?permissions?",
                r"(?:insufficient|missing) (?:the )?permissions?",
                r"(?:lacks?|lacking) (?:the )?permissions?",
                r"no permissions? (?:to|for)",
            ),
            r"\bforbidden\b(?! (?:characters?|words?|values?|names?|symbols?|fields?)\b)",
            _CODE + r"40[13]\b",
            r"权限不足|没有权限|无权(?:限)?访问|拒绝访问|访问被拒绝",
        ),
    ),
    (
        "missing",
        _pattern(
            _words(
                r"no such (?:file|directory|table|column|key|host|container|object|bucket|\w+)",
                r"(?:file|directory|path|page|record|resource|object|item|user|customer|key|table|"
                r"column|branch|command|module|\w*id) (?:was |is |could )?not (?:be )?found",
                r"(?:does|do|did) not exist|doesn't exist|don't exist",
                r"filenotfounderror|enoent",
            ),
            r"['\"`] (?:was |is |could )?not (?:be )?found\b",
            r"^\W*not found\b",
            r"\bnot found\b\W*$",
            r"\bnot found:",
            _CODE + r"404\b",
            r"(?<![\w.,$€#-])404\b\W{0,3}not found",
            r"不存在|未找到|找不到",
        ),
    ),
)


def symptom(error: str) -> str | None:
    """The name of the first pattern that matches: a key of the table in `Locale.advice`."""
    if len(error) > _LONGEST:
        error = error[: _LONGEST // 2] + "\n" + error[-_LONGEST // 2 :]
    for name, pattern in _SYMPTOMS:
        for found in pattern.finditer(error):
            if not _DENIED.search(error[: found.start()][-60:].lower()):
                return name
    return None

"""What to do next, by error type, tool and error text (R12). One table, two languages."""

from collections.abc import Sequence

from contract.outcome import Code, ErrorType, Executed

_AT_MOST = 3

_BY_TEXT: tuple[tuple[tuple[str, ...], str], ...] = (
    (("no such file", "not found", "does not exist"), "missing"),
    (("permission denied", "access denied", "forbidden"), "permission"),
    (("rate limit", "too many requests", "429"), "rate"),
    (("connection refused", "connection reset", "name or service"), "connection"),
    (("timed out", "timeout"), "slow"),
)

_BY_PREFIX: tuple[tuple[str, str], ...] = (
    ("fs_edit", "fs_edit"),
    ("fs_multi_edit", "fs_edit"),
    ("fs_", "fs"),
    ("bash", "bash"),
    ("http_", "http"),
)

_TEXTS: dict[str, dict[str, str]] = {
    "en": {
        "missing": "Check that the name exists: list or search first.",
        "permission": "Use something you have access to, or ask for access.",
        "rate": "Wait before you call it again, and send fewer calls.",
        "connection": "The service is not reachable now: try later or use another way.",
        "slow": "Ask for less at once, or split the work.",
        "fs": "Use fs_glob or fs_read to look at the files before you go on.",
        "fs_edit": "Read the file with fs_read and copy the text to replace exactly.",
        "bash": "Check the command, and split long commands into steps.",
        "http": "Check the address, and that it is public.",
        "validation": "Compare the arguments with the tool's schema and correct them.",
        "runtime": "Try again with other arguments, or use another tool.",
        "logical": "Read the error, and change the arguments or the plan.",
        "aborted": "Ask for less at once, or tell the user that it takes too long.",
        "exception": "This is no fault of the arguments: the same call may be sent again.",
        "unsure": "The tool may have run: check its effects before you repeat it.",
    },
    "zh": {
        "missing": "请先列出或搜索，确认名称存在。",
        "permission": "请使用有权限访问的资源，或申请权限。",
        "rate": "请稍候再调用，并减少调用次数。",
        "connection": "服务暂时无法连接：请稍后再试或换一种方式。",
        "slow": "请减少单次请求的内容，或拆分任务。",
        "fs": "请先用 fs_glob 或 fs_read 查看文件。",
        "fs_edit": "请先用 fs_read 读取文件，并原样复制要替换的文本。",
        "bash": "请检查命令，并把长命令拆成多步。",
        "http": "请检查地址，并确认它是公开的。",
        "validation": "请对照工具的 schema 修正参数。",
        "runtime": "请更换参数重试，或使用其他工具。",
        "logical": "请阅读错误信息，调整参数或计划。",
        "aborted": "请减少单次请求的内容，或告知用户耗时过长。",
        "exception": "这不是参数的问题：可以再次发送同一调用。",
        "unsure": "工具可能已经执行：重试前请先检查其影响。",
    },
}


def recommendations(
    name: str,
    code: Code,
    error: str,
    executed: Executed,
    *,
    own: Sequence[str] = (),
    retryable: bool = True,
    locale: str = "en",
) -> tuple[str, ...]:
    """At most three hints, the most specific first; the tool's own win (R5, R12)."""
    if own:
        return tuple(own)
    texts = _TEXTS[locale]
    chosen: list[str] = []
    lowered = error.lower()
    if code.error_type is not ErrorType.VALIDATION:
        chosen += [key for words, key in _BY_TEXT if any(word in lowered for word in words)][:1]
        chosen += [key for prefix, key in _BY_PREFIX if name.startswith(prefix)][:1]
    if executed is Executed.UNKNOWN and not retryable:
        chosen.append("unsure")
    elif not chosen or code.error_type is ErrorType.EXCEPTION:
        chosen.append(code.error_type.value)
    return tuple(texts[key] for key in dict.fromkeys(chosen))[:_AT_MOST]

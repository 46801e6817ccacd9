"""True and false hits: what an error says went wrong, and what only sounds like it (R12)."""

import pytest

from toolpool.dispatcher.messages import locales
from toolpool.dispatcher.messages.error_patterns import symptom

TRUE = {
    "rate": [
        "429 Too Many Requests",
        "HTTP 429",
        "HTTP/1.1 429",
        "status code: 429",
        "Request failed with status code 429",
        "Error code: 429 - {'error': ...}",
        "Client error '429 Too Many Requests' for url",
        "429 Client Error: for url: https://api.example",
        "rate limit exceeded",
        "rate_limit_exceeded",
        "Rate limit reached for gpt-4 in organization org-1",
        "You have hit your rate limit.",
        "You exceeded the daily quota",
        "API rate limited",
        "ThrottlingException: slow down",
        "请求过于频繁，请稍后再试",
    ],
    "connection": [
        "[Errno 111] Connection refused",
        "Connection reset by peer",
        "connect ECONNREFUSED 127.0.0.1:5432",
        "[Errno -2] Name or service not known",
        "Temporary failure in name resolution",
        "could not connect to server",
        "503 Service Unavailable",
        "status 502",
        "connection timed out",
        "ConnectTimeout",
        "无法连接数据库",
    ],
    "slow": [
        "timed out",
        "The read operation timed out",
        "TimeoutError",
        "asyncio.TimeoutError: ",
        "ReadTimeoutError(host='x')",
        "subprocess.TimeoutExpired: Command 'x'",
        "canceling statement due to statement timeout",
        "504 Gateway Timeout",
        "Timeout",
        "timeout after 30 s",
        "context deadline exceeded",
        "could not finish: timed out after 5 s",
        "请求超时",
    ],
    "permission": [
        "Permission denied",
        "[Errno 13] Permission denied: '/etc/shadow'",
        "PermissionError: no",
        "Access denied for user 'x'",
        "403 Forbidden",
        "Forbidden",
        "status code 401",
        "Operation not permitted",
        "You do not have permission to read this",
        "no permission to read orders",
        "Not authorized",
        "权限不足",
    ],
    "missing": [
        "No such file or directory: 'a'",
        "no such table: orders",
        "File not found",
        "FileNotFoundError: a",
        "customer C-1 does not exist",
        "Customer 'C-101' not found",
        "404 Not Found",
        "HTTP 404",
        "not found",
        "bash: foo: command not found",
        "customer_id not found",
        "文件不存在",
    ],
}
FALSE = [
    "",
    "order 14290 is closed",
    "order 429 is closed",
    "error on line 429",
    "429 rows were skipped",
    "cost was $429",
    "version 4.29.429",
    "id 404-403-503",
    "room 404 is taken",
    "the interest rate limit of this account is 5 %",
    "no permission needed",
    "no permission is needed for this",
    "without permission denied errors it stopped",
    "the timeout argument is unknown",
    "timeout must be a number",
    "timeout=30 is too small",
    "read timeout must be above 0",
    "request_timeout: 30 is not allowed",
    "did not time out",
    "it was not timed out",
    "no connection refused so far",
    "name contains forbidden characters",
    "this is not forbidden",
    "unforbidden",
    "the flight connection is full",
    "connection string is malformed",
    "no duplicates found",
    "errors not foundational",
    "the treasure was not found by the second team before noon",
    "existence does not matter",
    "超时时间必须是数字",
    "未超时，但结果为空",
    "无需权限",
]


@pytest.mark.parametrize(("name", "text"), [(n, t) for n, texts in TRUE.items() for t in texts])
def test_what_it_says(name: str, text: str) -> None:
    assert symptom(text) == name
    assert symptom(f"Could not do it: {text}") == name
    assert name in locales.locale("en").advice


@pytest.mark.parametrize("text", FALSE)
def test_what_it_does_not_say(text: str) -> None:
    assert symptom(text) is None


def test_a_whole_log_takes_no_time() -> None:
    """Its beginning and its end are looked at."""
    assert symptom("x " * 5_000_000 + "Connection refused") == "connection"
    assert symptom("not " * 2_000_000) is None
    assert symptom("HTTP " * 2_000_000) is None

"""The names of spans and attributes, for OpenTelemetry and for Sentry.

Sources: OpenTelemetry's semantic conventions for generative AI (execute_tool spans) and messaging,
https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/ and
https://opentelemetry.io/docs/specs/semconv/messaging/messaging-spans/; Sentry's modules Queues and
AI Agents, https://docs.sentry.io/platforms/python/tracing/instrumentation/custom-instrumentation/.
"""

from toolpool.contract.outcome import Code, ErrorType

OPERATION = "gen_ai.operation.name"
TOOL = "gen_ai.tool.name"
TOOL_CALL = "gen_ai.tool.call.id"
TOOL_TYPE = "gen_ai.tool.type"
CONVERSATION = "gen_ai.conversation.id"
AGENT = "gen_ai.agent.name"
PROVIDER = "gen_ai.provider.name"
ARGUMENTS = "gen_ai.tool.call.arguments"
RESULT = "gen_ai.tool.call.result"
ERROR_TYPE = "error.type"

MESSAGING_SYSTEM = "messaging.system"
MESSAGING_OPERATION = "messaging.operation.name"
MESSAGING_OPERATION_TYPE = "messaging.operation.type"
MESSAGE_ID = "messaging.message.id"
DESTINATION = "messaging.destination.name"
BODY_SIZE = "messaging.message.body.size"
RETRY_COUNT = "messaging.message.retry.count"
RECEIVE_LATENCY = "messaging.message.receive.latency"
"""Defined by Sentry; in milliseconds."""
BATCH_SIZE = "messaging.batch.message_count"

EXECUTED = "toolpool.executed"
ATTEMPT = "toolpool.attempt"
CODE = "toolpool.code"
CAUSE = "toolpool.cause"

EXECUTE_TOOL = "execute_tool"
QUEUE_PUBLISH, QUEUE_PROCESS = "queue.publish", "queue.process"
SENTRY_EXECUTE_TOOL = "gen_ai.execute_tool"

_PROVIDERS = {
    "anthropic": "anthropic",
    "openai": "openai",
    "gemini": "gcp.gemini",
    "bedrock": "aws.bedrock",
    "cohere": "cohere",
}

_STATUS = {
    Code.TIMEOUT: "deadline_exceeded",
    Code.CANCELLED: "cancelled",
    Code.DENIED: "permission_denied",
    Code.REPORTED: "failed_precondition",
}


def execute_tool(tool: str) -> str:
    """The name of a span in which a tool runs."""
    return f"{EXECUTE_TOOL} {tool}"


def provider_name(format: str) -> str:
    """The provider's name in the conventions, for a response format."""
    family = format.partition("_")[0]
    return _PROVIDERS.get(family, family)


def messaging_system(broker_url: str | None) -> str:
    """The broker's name in the conventions, for its URL."""
    scheme = (broker_url or "redis").partition(":")[0].partition("+")[0]
    return "rabbitmq" if scheme in ("amqp", "amqps", "pyamqp") else "redis"


def status_of(code: Code | None) -> str:
    """The status of a span, by gRPC's names: `internal_error` if the pool or a tool is at fault.

    Dashboards count only `internal_error` as a failure, so a model's mistake is not one.
    """
    if code is None:
        return "ok"
    if code.error_type is ErrorType.VALIDATION:
        return "invalid_argument"
    return _STATUS.get(code, "internal_error")


def is_fault(code: Code | None) -> bool:
    """Whether the tool or the pool is at fault, so that an operator has to act."""
    return status_of(code) == "internal_error"

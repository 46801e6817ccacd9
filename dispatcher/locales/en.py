"""English."""

from dispatcher.locales import Locale

LOCALE = Locale(
    head={
        "default": "Please rewrite the tool input with valid arguments. Errors: ",
        "numbered": "Parameter validation failed:\n",
        "pointer": "Validation failed:\n",
        "brief": "Invalid parameters: ",
    },
    tail={
        "default": "",
        "numbered": "\nPlease fix the parameters and try again.",
        "pointer": "",
        "brief": "",
    },
    line={
        "default": "{path}: {message}",
        "numbered": "Field '{path}' {message}",
        "pointer": "{path}: {message}",
        "brief": "{path}: {message}",
    },
    root_line={
        "default": "{message}",
        "numbered": "Root object {message}",
        "pointer": "/: {message}",
        "brief": "{message}",
    },
    more="and {count} more",
    required={
        "default": "Required",
        "numbered": "is required but missing",
        "pointer": "must be present",
        "brief": "Required",
    },
    required_shape="{required}, expected {shape}",
    wanted={
        "default": "expected {what}{got}",
        "numbered": "expected {what}{got}",
        "pointer": "must be {what}",
        "brief": "expected {what}{got}",
    },
    got={
        "default": ", got {received}",
        "numbered": ", got {received}",
        "pointer": "",
        "brief": ", got {received}",
    },
    either=" or ",
    or_left_out="{what} (or leave it out)",
    object_of="object {shape}",
    one_of="one of {members}",
    typed_one_of="{types}, one of {members}",
    another="another {received}",
    did_you_mean="did you mean {closest}? {message}",
    unknown_field={
        "default": "unknown field",
        "numbered": "is not known",
        "pointer": "must not be present",
        "brief": "unknown field",
    },
    unknown_field_allowed="{unknown}; allowed: {allowed}",
    unknown_field_leave_out="{unknown}, leave it out",
    unknown_field_meant="{unknown}, did you mean '{closest}'?",
    ambiguous="fits more than one alternative, leave out what belongs to only one of them",
    too_deep="is nested too deeply for this tool, send a flatter value",
    limits={
        "minimum": "a number of at least {expected}",
        "maximum": "a number of at most {expected}",
        "exclusiveMinimum": "a number above {expected}",
        "exclusiveMaximum": "a number below {expected}",
        "multipleOf": "a multiple of {expected}",
        "minLength": "at least {expected} characters",
        "maxLength": "at most {expected} characters",
        "minItems": "at least {expected} items",
        "maxItems": "at most {expected} items",
        "additionalItems": "at most {expected} items",
        "minProperties": "at least {expected} fields",
        "maxProperties": "at most {expected} fields",
        "pattern": "text matching {expected}",
        "format": "text in {expected} format",
        "uniqueItems": "items that all differ",
        "contains": "an array with the wanted number of items of the wanted kind",
        "unevaluatedItems": "fewer items",
        "falseSchema": "nothing here",
        "not": "another value: this one is excluded",
        "schema": "another value: this one does not fit the tool's schema",
        "propertyNames": "other field names",
    },
    other_limit="a value that satisfies {kind}",
    unknown_tool="Tool '{name}' not found.",
    unknown_tool_meant=" Did you mean '{closest}'?",
    no_tools=" No tools are available.",
    tools=" Available tools: {names}",
    tools_more=" and {count} more",
    full_stop=".",
    unparseable=(
        "{error}. Send the call again with one JSON object, keys and strings in double quotes."
    ),
    truncated="{error}. It was not run. Send it again, shorter, or in several smaller calls.",
    too_large="{error}. Send less at once, or pass a reference to the data.",
    too_many_calls=(
        "Only {cap} tool calls are run in one turn and this one came after them. It was not run. "
        "Send it again in a later turn."
    ),
    no_response=(
        "Please try again with valid format. The last response could not be read: {reason}."
    ),
    loop=(
        "This call of '{name}' was not run: the same call has failed {count} times. Do not send it "
        "again. Change the arguments, use another tool, or tell the user what keeps failing."
    ),
    refused_by_check="Please rewrite the tool input with valid arguments. Errors: {message}",
    raised="Error executing tool '{name}': {error}",
    crashed="Error executing tool '{name}': {error}. {whether}",
    timed_out="Tool '{name}' timed out after {timeout} s {end}. {whether}",
    and_was_stopped="and was stopped",
    but="but {error}",
    cancelled="Tool '{name}' was cancelled. {whether}",
    denied="Tool '{name}' was not run: {error}.",
    not_allowed="it is not allowed here",
    no_result="Tool '{name}' gave no result: {error}. {whether}",
    reasons={
        "exception.worker_lost": "the worker that ran it was lost",
        "exception.expired": "no worker started it in time",
        "exception.queue_unreachable": "the queue could not be reached",
        "exception.overloaded": "too many calls are waiting",
        "exception.circuit_open": "it has been failing and is switched off for a moment",
    },
    internal="the tool system had an internal fault",
    not_run="It was not run.",
    may_have_run="It may have had effects: check before you repeat it.",
    cut="The output was {size} bytes; the middle was left out.",
    cut_less="Ask for less at once.",
    cut_pages=(
        "All of it is kept for a while: read it in pages with task_result, the handle '{handle}' "
        "and page 1, 2, …, or ask for less at once."
    ),
    still_running=(
        "It is still running in the background. Call task_result with the handle '{handle}' to "
        "get its result."
    ),
    unseen_end=(
        "The call of '{name}' before this one was not seen to end: it may still have been running."
    ),
    no_such_handle=(
        "There is no background task with this handle. Use task_list to see what there is."
    ),
    mended="The arguments were not strict JSON ({what}) and were mended.",
    repaired="The arguments were corrected before the call: {what}.",
    repairs={
        "json": "{path} was JSON in a string and was read as {type}",
        "number": "{path} was a string and was read as {type}",
        "boolean": "{path} was a string and was read as {type}",
        "wrapped": "{path} was a single item and was put in an array",
        "dropped": "{path} was null and was left out",
    },
    advice={
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
        "unknown_tool": "Use one of the tools that are listed, by its exact name.",
        "loop": "Stop repeating this call: change the plan, or ask the user.",
        "runtime": "Try again with other arguments, or use another tool.",
        "logical": "Read the error, and change the arguments or the plan.",
        "aborted": "Ask for less at once, or tell the user that it takes too long.",
        "exception": "This is no fault of the arguments: the same call may be sent again.",
        "unsure": "The tool may have run: check its effects before you repeat it.",
    },
)

"""English."""

from toolpool.dispatcher.messages.locales import Locale

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
    shape={
        "default": ". Expected {shapes}",
        "numbered": "\nExpected {shapes}",
        "pointer": "\nExpected {shapes}",
        "brief": ". Expected {shapes}",
    },
    shape_alone={
        "default": "Please rewrite the tool input with valid arguments. Expected {shapes}",
        "numbered": "Parameter validation failed:\nExpected {shapes}",
        "pointer": "Validation failed:\nExpected {shapes}",
        "brief": "Invalid parameters. Expected {shapes}",
    },
    arguments="arguments",
    required={
        "default": "Required",
        "numbered": "is required but missing",
        "pointer": "must be present",
        "brief": "Required",
    },
    required_shape="{required}, expected {shape}",
    required_sent="{required}, did you send it as '{sent}'?",
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
    no_null="null is not accepted, leave it out",
    object_of="object {shape}",
    one_of="one of {members}",
    typed_one_of="{types}, one of {members}",
    one_of_those_below="one of the values below",
    another="another {received}",
    holding={
        "array": "string that holds an array, send it without quotes",
        "object": "string that holds an object, send it without quotes",
        "list": "string that holds a list, send an array",
    },
    did_you_mean="did you mean {closest}? {message}",
    unknown_field={
        "default": "unknown field",
        "numbered": "is not known",
        "pointer": "must not be present",
        "brief": "unknown field",
    },
    unknown_field_leave_out="{unknown}, leave it out",
    unknown_field_meant="{unknown}, did you mean '{closest}'?",
    ambiguous="fits more than one alternative, leave out what belongs to only one of them",
    too_deep="is too large or too deeply nested for this tool, send a shorter or flatter value",
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
    unsupported="'{kind}' is not supported here: no tool is named '{name}'.",
    unknown_tool_meant=" Did you mean '{closest}'?",
    nameless="The tool call has no name.",
    no_tools=" No tools are available.",
    tools=" Available tools: {names}",
    names_more=" and {count} more",
    full_stop=".",
    flaws={
        "no_form": "The tool call block is not of the expected form",
        "no_text": "The arguments are neither text nor an object",
        "cut_off": "The tool call was cut off by the output token limit",
        "broken_off": "The tool call broke off before its end",
        "malformed_call": "The provider could not read the tool call ({why})",
        "stopped": "The response ended with '{stop}', and the calls of such a response are not run",
        "another_choice": "Only the calls of the response's first choice are run",
        "safety_checks": "The action has safety checks that nobody here has acknowledged",
        "no_approver": "Nobody here can approve calls",
        "unknown_type": "An object of the type '{type}' is not a tool call",
        "free_text": "The tool '{name}' takes JSON arguments, not free text",
        "not_json": (
            "The arguments are not valid JSON: {why}, at character {at} of {of}, near `{near}`"
        ),
        "not_an_object": "The arguments must be one JSON object, not {kind}",
        "not_utf8": "The arguments are not valid UTF-8",
        "no_json_value": "The arguments hold a value that JSON does not have",
        "doubled_key": "The key '{key}' appears twice in one object; send it once",
        "odd_number": "{name} is not JSON; send a number or null",
        "odd_numbers": "NaN and Infinity are not JSON; send a number or null",
        "digits": "A number in the arguments has too many digits",
        "surrogate": "A string in the arguments holds half of a surrogate pair",
        "too_deep": "The arguments are nested more than {levels} levels deep",
        "too_large": "The arguments are {size} bytes; at most {cap} are accepted",
    },
    json_breaks={
        "early": "it ends too early, before the object is closed",
        "unclosed": "a string is never closed",
        "extra": "there is more after the first value",
        "comma": "a comma or a closing bracket is missing",
        "colon": "a colon is missing after a key",
        "key": "a key in double quotes is missing",
        "value": "a value is missing, or has no double quotes",
        "trailing_comma": "there is a comma before a closing bracket",
        "control": "a line break, tab or other control character in a string is not escaped",
        "escape": "there is a backslash escape that JSON does not have",
        "other": "it cannot be read",
    },
    unparseable=(
        "{error}. Send the call again with one JSON object, keys and strings in double quotes."
    ),
    truncated="{error}. It was not run. Send it again, shorter, or in several smaller calls.",
    refused="{error}. It was not run.",
    too_large="{error}. Send less at once, or pass a reference to the data.",
    too_many_calls=(
        "Only {cap} tool calls are run in one turn and this one came after them. It was not run. "
        "Send it again in a later turn."
    ),
    no_response=(
        "Please try again with valid format. The last response could not be read: {reason}."
    ),
    unreadable={
        "unknown_form": "the response is of no known provider's form",
        "unknown_type": "an object of the type '{type}' is not known here",
        "wrong_format": "the response holds calls in the form of '{other}', but was read as "
        "'{format}'",
        "not_json": "the response is not JSON",
        "no_content": "the message has no content list",
        "no_choices": "the completion has no choices",
        "no_message": "the completion's first choice has no message",
        "no_tool_calls": "the message's tool_calls are not a list",
        "no_output": "the response has no output list",
        "no_candidates": "the response has no candidates",
        "malformed_call": "its tool call is malformed ({why})",
        "no_parts_list": "the candidate's parts are not a list",
        "no_request": "a request is not an object",
    },
    loop=(
        "This call of '{name}' was not run: the same call has failed {count} times. Do not send it "
        "again. Change the arguments, use another tool, or tell the user what keeps failing."
    ),
    loop_in_turns=(
        "This call of '{name}' was not run: it and another call have been failing alternately. Do "
        "not send either again. Change the arguments, use another tool, or tell the user what "
        "keeps failing."
    ),
    again=(
        " This has failed {count} times: do not send it again. Change the call, use another tool, "
        "or tell the user what keeps failing."
    ),
    again_in_turns=(
        " This and another call have been failing alternately: do not send either again. Change "
        "the call, use another tool, or tell the user what keeps failing."
    ),
    not_checked="The arguments could not be checked: the tool system had an internal fault.",
    refused_by_check="Please rewrite the tool input with valid arguments. Errors: {message}",
    raised="Error executing tool '{name}': {error}",
    bad_result=(
        "Tool '{name}' ran, but returned something other than it declares: {problems}. This is a "
        "fault of the tool, not of the arguments."
    ),
    raised_as="{kind}: {error}",
    masked="{kind}, error id {id}",
    unnamed_error="error",
    crashed="Error executing tool '{name}': {error}. {whether}",
    fell_silent="Tool '{name}' was stopped: it gave no sign of life for {silence} s. {whether}",
    blocked_loop="Tool '{name}' was stopped: it blocked its worker's event loop. {whether}",
    timed_out="Tool '{name}' timed out after {timeout} s {end}. {whether}",
    and_was_stopped="and was stopped",
    without_word="and its worker has not answered",
    but_goes_on="but still runs for another caller",
    but="but {error}",
    cancelled="Tool '{name}' was cancelled. {whether}",
    denied="Tool '{name}' was not run: {error}.",
    arguments_differ=(
        "the tool would read its arguments ({fields}) in another way than they were judged; write "
        "every value exactly as its schema shows it"
    ),
    not_comparable=(
        "the policy cannot verify its arguments ({fields}) because of their types, and would not "
        "accept another value of them"
    ),
    not_judged="no policy has judged it, and one is required",
    no_approver="there is nobody who may approve it",
    policy_failed="the policy that decides about it failed",
    withheld="Tool '{name}' has a result that may not be shown.",
    not_allowed="it is not allowed here",
    no_credential=(
        "No credential '{credential}' is set up for tool '{name}'.{not_run} Tell the user: the "
        "same call can work once an operator has set it up."
    ),
    needs_sign_in=(
        "Tool '{name}' needs the user to sign in.{not_run} Ask the user to, then call it again."
    ),
    needs_sign_in_at=(
        "Tool '{name}' needs the user to sign in.{not_run} Ask the user to, then call it again: "
        "{url}"
    ),
    no_result="Tool '{name}' gave no result: {error}. {whether}",
    reasons={
        "exception.worker_lost": "the worker that ran it was lost",
        "exception.expired": "no worker started it in time",
        "exception.queue_unreachable": "the queue could not be reached",
        "exception.overloaded": "too many calls are waiting",
        "exception.circuit_open": "it has been failing and is switched off for a moment",
        "changed": "it was changed meanwhile, and may take other arguments now",
        "forgotten": "it may have run before, and its record no longer exists",
        "credentials": "the system that keeps its credentials failed",
        "server_full": "the server of the tool system is full, and takes no new calls",
        "others": "another caller made the same call, and it goes on for that caller",
        "nobody_approved": "nobody approved it in time",
        "not_approved": "nobody approved it",
        "changed_since": "its tool has changed since it was approved",
        "not_cancelled": "the server did not confirm that the background call is cancelled, so it "
        "may go on",
    },
    limited={
        "tool": "calls of it are limited to {most} {window}",
        "at_once": "{most} of its calls are running, and no more may run at the same time",
        "tool_tenant": "calls of it are limited to {most} {window}",
        "tool_session": "calls of it are limited to {most} {window} in one conversation",
        "session": "tool calls are limited to {most} {window} in one conversation",
        "tenant": "tool calls are limited to {most} {window} in all conversations together",
    },
    windows={"running": "", "s": "a second", "min": "a minute", "h": "an hour", "day": "a day"},
    internal="the tool system had an internal fault",
    not_run="It was not run.",
    may_have_run="It may have had effects: check before you repeat it.",
    cut="The output was {size} bytes; the middle was left out.",
    cut_less="Ask for less at once.",
    cut_pages=(
        "All of it is kept for a while: read it in pages with task_result, the handle '{handle}' "
        "and page 1, 2, …, or ask for less at once."
    ),
    still_running="It is still running in the background.",
    ask_for_result=" Call task_result with the handle '{handle}' to get its result.",
    awaits_approval="It runs only if a person approves it. Go on without it.",
    ask_for_result_later=(
        " Call task_result with the handle '{handle}' later to see what became of it."
    ),
    denied_by="{who} denied it",
    denied_by_because="{who} denied it: {reason}",
    rewritten="Before it ran, these arguments were changed for you: {names}.",
    unseen_end=(
        "It is not known whether the call of '{name}' before this one had ended when this one ran."
    ),
    shared="This is the result of an equal call that was running at the same time.",
    cached="This is the result of an equal call, {seconds} s old.",
    no_such_handle="There is no background task with this handle.",
    list_tasks=" Use task_list to see what there is.",
    no_such_page="There is no page {page}: the output has {pages}, counted from 1.",
    more_tasks="There are {count} older background tasks, which are not listed.",
    tasks_of_no_session=(
        "Background tasks cannot be listed in this conversation, which has no session: use the "
        "handles that the calls answered with."
    ),
    made_up_id="The call had no usable id and was given the id '{id}'.",
    text_repaired="The arguments were not strict JSON ({what}) and were repaired.",
    text_repairs={
        "fence": "Markdown fence",
        "around": "text around the object",
        "comma": "a comma before a closing bracket",
        "comments": "comments",
        "single": "single quotes",
        "keys": "keys without quotes",
        "words": "True, False or None for true, false or null",
        "breaks": "line breaks or tabs inside a string",
        "apostrophe": "\\' for an apostrophe",
        "escaped": "escaped quotes",
        "twice": "an object inside a string",
        "space": "white space that JSON does not have",
    },
    listed=", ",
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
        "runtime": "If it fails again, use other arguments or another tool.",
        "bad_result": "If it keeps failing, use another tool or tell the user that it is broken.",
        "cancelled": "Do not send it again unless the user asks for it.",
        "denied": "Do not send it again: use another tool, or ask the user.",
        "changed": "Look at the arguments of the tool as it is offered now, and call it anew.",
        "exception": "This is no fault of the arguments: the same call may be sent again.",
    },
)

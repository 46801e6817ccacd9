"""A server that rejects a step for a while loses no result: a right withdrawn, a proxy's error."""

from pathlib import Path

from pydantic import SecretStr

from tests.chaos.servers import Server
from tests.integration.fleet import call
from tests.integration.test_liveness import Held, held_fleet
from tests.waiting import eventually
from toolpool import Code, Dispatcher, Executed
from toolpool.contract.settings import Settings
from toolpool.contract.signing import generate_key


async def test_a_result_that_the_server_rejects_for_a_while_is_reported_later(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "server", aof=False)
    settings = Settings(redis_url=server.url, signing_key=SecretStr(generate_key()))
    fleet = held_fleet(settings, tmp_path)
    log = tmp_path / "worker-0-l.log"
    try:
        async with Dispatcher.connect(settings=settings) as dispatcher:
            held = [Held(dispatcher, tmp_path, name) for name in ("held_read", "held_write")]
            for each in held:
                await each.started()
            with server.client() as client:
                client.execute_command("ACL", "SETUSER", "default", "-evalsha", "-eval")
                for each in held:
                    each.gate.touch()
                await eventually(lambda: "settle_failed" in log.read_text(), "it is rejected")
                refused = (await dispatcher.dispatch(call("held_read", gate="", trace="")))[0]
                client.execute_command("ACL", "SETUSER", "default", "+evalsha", "+eval")
            assert (refused.code, refused.executed) == (Code.QUEUE_UNREACHABLE, Executed.UNKNOWN)
            for each in held:
                assert (await each.result()).ok
                assert each.starts == 1
    finally:
        fleet.close()
        server.close()

"""Creates and connects the parts of one dispatcher."""

from collections.abc import Collection, Sequence
from itertools import chain

from toolpool.contract.envelope import Envelope
from toolpool.contract.settings import Settings, warn_of_mistyped_variables
from toolpool.dispatcher.admission.acceptance import Acceptance
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.admission.loop_guard import LoopGuard
from toolpool.dispatcher.analytics import Analytics
from toolpool.dispatcher.approval_waits import ApprovalWaits
from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.background import Background
from toolpool.dispatcher.calls.in_flight import InFlightCalls
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.messages.wording import Wording, wording_of
from toolpool.dispatcher.observer import Observer, Observers
from toolpool.dispatcher.observers.log import log
from toolpool.dispatcher.observers.observer_setup import ObserverSetup, Record
from toolpool.dispatcher.ordered_turns import OrderedTurns
from toolpool.dispatcher.policy.approval_webhook import ApprovalNotifier
from toolpool.dispatcher.policy.decision import Policy
from toolpool.dispatcher.policy.hooks import Hooks, HostHooks
from toolpool.dispatcher.policy.result_policy import ResultPolicy
from toolpool.dispatcher.provider_approvals import ProviderApprovals
from toolpool.dispatcher.results import Results
from toolpool.dispatcher.resume import Resume
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.turn_pipeline import TurnPipeline


class Wiring:
    """The parts of one dispatcher. Raises `Misconfigured` for unusable hooks, rules or records."""

    def __init__(
        self,
        transport: Transport,
        settings: Settings,
        envelope: Envelope,
        *,
        only: Collection[str] | None,
        follows_catalog: bool,
        hooks: Hooks | None,
        observers: Sequence[Observer],
        record: Record | None,
    ) -> None:
        warn_of_mistyped_variables()
        self.hooks = HostHooks(hooks, settings)
        self.observers = Observers([log(), *observers], with_texts=settings.error_texts)
        self.catalog = Catalog()
        wording = wording_of(settings)
        self.acceptance = Acceptance(self.catalog, settings, wording, only)
        services = Services(transport, envelope, settings, self.observers)
        self.watching = ObserverSetup(services, self.catalog, record)
        self.in_flight = InFlightCalls(services, self.catalog, follows_catalog=follows_catalog)
        results = Results(
            wording,
            self._result_policy(wording),
            settings.tenant,
            offers=self.acceptance.offers,
            with_texts=settings.error_texts,
        )
        self.approvals = Approvals(services)
        self.notifier = ApprovalNotifier(settings, self.hooks.on_approval, self.observers)
        self.policy = policy = Policy(
            settings,
            wording,
            self.observers,
            rules=self.hooks.rules,
            hook=self.hooks.before_call,
        )
        self.in_flight.reporter.policy = lambda: policy.digest
        self.approval_waits = ApprovalWaits(
            services,
            self.in_flight,
            self.catalog,
            self.notifier,
            policy,
            self.acceptance.offers,
        )
        self.background = Background(
            services, self.in_flight, self.catalog, results, wording, self.approval_waits
        )
        self.in_flight.reporter.handed_out = self.background.handed_out
        self.turns = OrderedTurns(
            self.in_flight, self.background, self.approval_waits, settings, results
        )
        self.loops = LoopGuard(transport.failures, settings, self.observers, self.hooks.on_loop)
        self.analytics = Analytics(observers=self.observers)
        self.provider_approvals = ProviderApprovals(
            services, policy, wording, self.notifier, self.in_flight.available
        )
        self.in_flight.reporter.unsent_calls = lambda: chain(
            self.turns.unsent_calls(), self.provider_approvals.unsent_calls()
        )
        self.pipeline = TurnPipeline(
            settings,
            wording,
            self.observers,
            acceptance=self.acceptance,
            in_flight=self.in_flight,
            turns=self.turns,
            loops=self.loops,
            analytics=self.analytics,
            recorder=self.watching.recorder,
            policy=policy,
            results=results,
            provider_approvals=self.provider_approvals,
        )
        self.resumer = Resume(
            transport, settings, self.pipeline, self.turns, self.in_flight.in_background
        )
        self.in_flight.ended_calls.on_new_epoch = self.resumer.write_again

    def _result_policy(self, wording: Wording) -> ResultPolicy | None:
        hook = self.hooks.after_result
        return ResultPolicy(wording, self.observers, hook) if hook is not None else None

"""Puts together the parts of one dispatcher, so that each is given what it needs."""

from collections.abc import Collection, Sequence
from itertools import chain

from toolpool.contract.envelope import Envelope
from toolpool.contract.settings import Settings, warn_of_mistyped_variables
from toolpool.dispatcher.admission.accepting import Accepting
from toolpool.dispatcher.admission.catalog import Catalog
from toolpool.dispatcher.admission.loop_guard import LoopGuard
from toolpool.dispatcher.analytics import Analytics
from toolpool.dispatcher.approvals import Approvals
from toolpool.dispatcher.asking import Asking
from toolpool.dispatcher.awaiting import Awaiting
from toolpool.dispatcher.background import Background
from toolpool.dispatcher.calls.services import Services
from toolpool.dispatcher.calls.traffic import Traffic
from toolpool.dispatcher.classifier import Classifier
from toolpool.dispatcher.histories import Histories
from toolpool.dispatcher.observe import Observer, Observers
from toolpool.dispatcher.observers.log import log
from toolpool.dispatcher.observers.watching import Record, Watching
from toolpool.dispatcher.policy.hooks import Hooks, HostHooks
from toolpool.dispatcher.policy.notify import Notifier
from toolpool.dispatcher.policy.policy import Policy
from toolpool.dispatcher.policy.results import ResultPolicy
from toolpool.dispatcher.provider_approvals import ProviderApprovals
from toolpool.dispatcher.results import Results
from toolpool.dispatcher.transports.base import Transport
from toolpool.dispatcher.turns import Turns
from toolpool.dispatcher.words.wording import Wording, wording_of


class Parts:
    """One dispatcher's. Raises `Misconfigured` for hooks, rules or a record that cannot be used."""

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
        self.accepting = Accepting(self.catalog, settings, wording, only)
        services = Services(transport, envelope, settings, self.observers)
        self.watching = Watching(services, self.catalog, record)
        self.traffic = Traffic(services, self.catalog, follows_catalog=follows_catalog)
        classify = Classifier(wording, self.accepting, with_texts=settings.error_texts)
        told = Results(classify, self._result_policy(settings, wording), settings.tenant)
        self.approvals = Approvals(services)
        self.notifier = Notifier(settings, self.hooks.on_approval, self.observers)
        self.policy = policy = Policy(
            settings,
            wording,
            self.observers,
            rules=self.hooks.rules,
            hook=self.hooks.before_call,
        )
        self.traffic.reporter.policy = lambda: policy.digest
        self.awaiting = Awaiting(services, self.traffic, self.catalog, self.notifier, policy)
        self.background = Background(
            services, self.traffic, self.catalog, told, wording, self.awaiting
        )
        self.traffic.reporter.handed_out = self.background.handed_out
        self.turns = Turns(self.traffic, self.background, self.awaiting, settings, classify)
        self.loops = LoopGuard(transport.loops, settings, self.observers, self.hooks.on_loop)
        self.analytics = Analytics(alert_rate=settings.rejections_alert, observers=self.observers)
        self.foreign = ProviderApprovals(
            services, policy, wording, self.notifier, self.traffic.available
        )
        self.traffic.reporter.held_back = lambda: chain(
            self.turns.held_back(), self.foreign.held_back()
        )
        self.asking = Asking(
            settings,
            wording,
            self.observers,
            accepting=self.accepting,
            availability=self.traffic.available,
            turns=self.turns,
            loops=self.loops,
            analytics=self.analytics,
            recorder=self.watching.recorder,
            policy=policy,
            told=told,
            foreign=self.foreign,
        )
        self.histories = Histories(transport, settings, self.asking, self.traffic.in_background)

    def _result_policy(self, settings: Settings, wording: Wording) -> ResultPolicy | None:
        hook = self.hooks.after_result
        if hook is None:
            return None
        return ResultPolicy(settings, wording, self.observers, hook)

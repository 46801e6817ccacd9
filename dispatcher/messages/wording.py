"""How much the model is told, in which language, and in which layout."""

from dataclasses import dataclass

from toolpool.contract.settings import Settings
from toolpool.dispatcher.messages.locales import Locale, locale


@dataclass(frozen=True, slots=True)
class Caps:
    """How much one rejection may say.

    `characters` are for what is nearly right, `shape_characters` for what needs a shape or a long
    list of values; each is for the whole text.
    """

    errors: int = 5
    characters: int = 240
    shape_characters: int = 1_500
    names: int = 10


@dataclass(frozen=True, slots=True)
class Wording:
    """How much to say, in which language, and how a rejection is laid out.

    With `masks_errors` the text of what a tool raised is kept from the model.
    """

    caps: Caps = Caps()
    locale: str = "en"
    style: str = "default"
    masks_errors: bool = False

    @property
    def words(self) -> Locale:
        """The language's file."""
        return locale(self.locale)


PLAIN = Wording()


def wording_of(settings: Settings) -> Wording:
    """As the operator wants it said. Raises `Misconfigured` for a language that is not there."""
    caps = Caps(
        settings.feedback_errors,
        settings.feedback_characters,
        max(settings.feedback_characters, settings.feedback_shape_characters),
        settings.feedback_names,
    )
    wording = Wording(caps, settings.locale, settings.feedback_style, settings.mask_errors)
    _ = wording.words
    return wording

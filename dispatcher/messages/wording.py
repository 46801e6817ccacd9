"""The length, language and layout of texts for the model."""

from dataclasses import dataclass

from toolpool.contract.settings import Settings
from toolpool.dispatcher.messages.locales import Locale, locale


@dataclass(frozen=True, slots=True)
class Caps:
    """How much one rejection may say.

    `characters` is for near misses, `shape_characters` for texts with a shape or a long list of
    values; each limits the whole text.
    """

    errors: int = 5
    characters: int = 240
    shape_characters: int = 1_500
    names: int = 10


@dataclass(frozen=True, slots=True)
class Wording:
    """The length, language and layout of rejections.

    `masks_errors` hides the text of a tool's exception from the model.
    """

    caps: Caps = Caps()
    locale: str = "en"
    style: str = "default"
    masks_errors: bool = False

    @property
    def words(self) -> Locale:
        """The language's texts."""
        return locale(self.locale)


PLAIN = Wording()


def wording_of(settings: Settings) -> Wording:
    """The wording by the settings. Raises `Misconfigured` for an unknown language."""
    wording = Wording(
        locale=settings.locale, style=settings.rejection_style, masks_errors=settings.mask_errors
    )
    _ = wording.words
    return wording

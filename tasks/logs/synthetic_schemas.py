"""The columns of the synthetic logs: their distributions, and the pairs that interact."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Kind = Literal["display", "clicks"]
Tails = Literal["usual", "heavy"]


class Integer(NamedTuple):
    """floor(exp(normal)) minus a shift: heavy-tailed, and sometimes negative if the shift is not 0."""

    name: str
    log_mean: float
    log_std: float
    missing: float
    shift: int = 0


class Categorical(NamedTuple):
    """Zipf-distributed tokens, drawn per row or, with ``parent``, a function of the parent's token."""

    name: str
    size: int
    missing: float = 0.0
    parent: str | None = None


class Schema(NamedTuple):
    """The columns of a kind of log, and the pairs of columns that interact.

    ``spread`` is the standard deviation of the planted score and ``rate`` the share of rows with a
    click or a conversion. Both hold by construction for any seed. Token frequencies fall with the rank
    to the power of ``-zipf_exponent``. ``idle_share`` of the columns have no effect on the label.
    """

    integers: tuple[Integer, ...]
    categoricals: tuple[Categorical, ...]
    token_pairs: tuple[tuple[str, str], ...]
    integer_pair: tuple[str, str]
    spread: float
    rate: float
    zipf_exponent: float = 1.25
    idle_share: float = 0.0


# fmt: off
# I1 to I13 resemble Criteo's: mean and standard deviation of the logarithm, share of missing values.
_DISPLAY_INTEGERS: tuple[tuple[Any, ...], ...] = (
    (0.9, 1.1, 0.45), (2.5, 2.0, 0.0, 3), (1.9, 1.5, 0.21), (1.6, 1.0, 0.22), (8.0, 1.9, 0.03),
    (3.6, 1.5, 0.22), (1.8, 1.4, 0.04), (2.1, 1.1, 0.001), (3.9, 1.3, 0.04), (0.2, 0.7, 0.45),
    (0.8, 0.9, 0.04), (0.1, 1.0, 0.40), (1.6, 1.1, 0.22),
)
# C1 to C26: Criteo's vocabulary sizes, and similar shares of missing values.
_DISPLAY_CATEGORICALS: tuple[tuple[Any, ...], ...] = (
    (1460,), (583,), (10_131_227, 0.03), (2_202_608, 0.03), (305,), (24, 0.12), (12_517,), (633,), (3,),
    (93_145,), (5683,), (8_351_593, 0.03), (3194,), (27,), (14_992,), (5_461_306, 0.03), (10,), (5652,),
    (2173, 0.44), (4, 0.44), (7_046_547, 0.03), (18, 0.45), (15,), (286_181, 0.03), (105, 0.44),
    (142_572, 0.44),
)
# fmt: on
_DISPLAY = Schema(
    integers=tuple(Integer(f"I{n}", *shape) for n, shape in enumerate(_DISPLAY_INTEGERS, start=1)),
    categoricals=tuple(Categorical(f"C{n}", *shape) for n, shape in enumerate(_DISPLAY_CATEGORICALS, start=1)),
    token_pairs=(("C14", "C17"), ("C23", "C6"), ("C9", "C5"), ("C17", "C8")),
    integer_pair=("C17", "I7"),
    spread=1.42,
    rate=0.25,
)
_CLICKS = Schema(
    integers=(
        Integer("clicks_last_week", 1.2, 1.0, 0.0),
        Integer("seconds_since_last_click", 8.5, 2.0, 0.3),
        Integer("product_price_cents", 8.0, 1.1, 0.02),
        Integer("cart_value_cents", 8.6, 1.2, 0.4),
        Integer("product_age_days", 4.2, 1.1, 0.05),
        Integer("user_account_days", 5.4, 1.3, 0.15),
    ),
    categoricals=(
        Categorical("campaign", 700),
        Categorical("advertiser", 200, parent="campaign"),
        Categorical("product", 200_000),
        Categorical("product_category", 400, 0.05, parent="product"),
        Categorical("product_brand", 5000, 0.12, parent="product"),
        Categorical("publisher", 20_000),
        Categorical("placement", 60),
        Categorical("device", 12, 0.03),
        Categorical("country", 40),
        Categorical("hour_of_day", 24),
    ),
    token_pairs=(("device", "placement"), ("country", "device")),
    integer_pair=("device", "seconds_since_last_click"),
    spread=1.3,
    rate=0.10,
)

SCHEMAS: dict[Kind, Schema] = {"display": _DISPLAY, "clicks": _CLICKS}

# `tails: heavy`: rare tokens and large integers are more frequent, half of the columns have no effect, and the
# label depends less on the rest. No grid of ours was chosen on such logs, so they test whether one holds elsewhere.
_HEAVY_ZIPF_EXPONENT, _HEAVY_LOG_STD, _HEAVY_IDLE_SHARE, _HEAVY_SPREAD = 1.05, 1.5, 0.5, 0.8


def schema_of(kind: Kind, tails: Tails) -> Schema:
    """Returns the columns of a kind of log, with usual or heavy tails.

    >>> schema_of("clicks", "heavy").zipf_exponent < schema_of("clicks", "usual").zipf_exponent
    True
    """
    usual = SCHEMAS[kind]
    if tails == "usual":
        return usual
    return usual._replace(
        integers=tuple(column._replace(log_std=_HEAVY_LOG_STD * column.log_std) for column in usual.integers),
        spread=_HEAVY_SPREAD * usual.spread,
        zipf_exponent=_HEAVY_ZIPF_EXPONENT,
        idle_share=_HEAVY_IDLE_SHARE,
    )


LOG_NAMES: dict[Kind, str] = {"display": "train.tsv", "clicks": "clicks.parquet"}

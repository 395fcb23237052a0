"""Dictionary encoding round-trips tokens of any length, in any chunks."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.logs.token_dictionaries import TOKENS, dictionary_encoded, narrowed

EIGHT = st.sampled_from(["", "68fd1e64", "80e26c9b", "größ5\x01", "aaaaaaaa", "ffffffff"])
ANY = st.one_of(EIGHT, st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=10))


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.one_of(st.lists(st.lists(EIGHT, max_size=9), max_size=4), st.lists(st.lists(ANY, max_size=9), max_size=4)))
def test_tokens_come_back(chunks: list[list[str]]) -> None:
    texts = pa.chunked_array([pa.array(chunk, pa.string()) for chunk in chunks], pa.string())
    encoded = dictionary_encoded(texts)
    encoded.validate(full=True)
    assert encoded.type == TOKENS
    assert encoded.to_pylist() == texts.to_pylist()
    dictionary = encoded.dictionary.to_pylist()
    assert len(set(dictionary)) == len(dictionary)


@pytest.mark.parametrize("width", [7, 8, 9])
def test_slices_of_arrays(width: int) -> None:
    array = pa.array([f"{number:0{width}}" for number in [5, 6, 5, 7, 6]])
    texts = pa.chunked_array([array.slice(1, 3), array.slice(4)])
    assert dictionary_encoded(texts).to_pylist() == texts.to_pylist()


@pytest.mark.parametrize(("distinct", "width"), [(1, 8), (127, 8), (128, 16), (32_767, 16), (32_768, 32)])
def test_indices_are_as_wide_as_they_must_be(distinct: int, width: int) -> None:
    texts = [str(number) for number in range(distinct)]
    tokens = narrowed(dictionary_encoded(pa.chunked_array([texts])))
    assert tokens.type.index_type.bit_width == width
    assert tokens.to_pylist() == texts

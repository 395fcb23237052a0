"""Dictionary encoding of token columns: each token once, and an index for every row.

It is also part of released models, so it imports nothing of ours.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

TOKENS = pa.dictionary(pa.int32(), pa.string())

_CODE = np.dtype(np.uint64)


def dictionary_encoded(texts: pa.ChunkedArray) -> pa.DictionaryArray:
    """Encodes tokens with one dictionary for all chunks. No token may contain a zero byte.

    Tokens of eight bytes, such as Criteo's hashes, are encoded as integers, which is more than twice as fast.
    """
    codes = _codes(texts)
    chunks = (texts if codes is None else pa.chunked_array([codes])).dictionary_encode().chunks
    if not chunks:
        return pa.array([], TOKENS)
    dictionary = chunks[-1].dictionary
    tokens = dictionary if codes is None else _texts(dictionary.to_numpy())
    return pa.DictionaryArray.from_arrays(pa.concat_arrays([chunk.indices for chunk in chunks]), tokens)


def as_tokens(column: pa.Array) -> pa.DictionaryArray:
    """Dictionary-encodes a column as strings, "" for null. A token may be in the dictionary twice."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    tokens = column.dictionary.cast(pa.string()).fill_null("")
    tokens.validate(full=True)  # nothing else checks that they are UTF-8
    indices = column.indices.cast(pa.int32())
    if indices.null_count:
        indices = indices.fill_null(len(tokens))
        tokens = pa.concat_arrays([tokens, pa.array([""], pa.string())])
    return pa.DictionaryArray.from_arrays(indices, tokens)


def narrowed(tokens: pa.DictionaryArray) -> pa.DictionaryArray:
    """Returns the same column with the smallest integer type that can index its dictionary."""
    kind = next(
        kind for kind in (pa.int8(), pa.int16(), pa.int32()) if len(tokens.dictionary) < 1 << kind.bit_width - 1
    )
    return pa.DictionaryArray.from_arrays(tokens.indices.cast(kind), tokens.dictionary)


def _codes(texts: pa.ChunkedArray) -> np.ndarray | None:
    """Returns each token's eight bytes as an integer, 0 for an empty token; None if a token has another length."""
    codes = []
    for chunk in texts.chunks:
        _, offsets_buffer, text_buffer = chunk.buffers()
        offsets = np.frombuffer(offsets_buffer, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1]
        lengths = np.diff(offsets)
        full = lengths == _CODE.itemsize
        if np.any(lengths[~full]):
            return None
        values = np.zeros(len(chunk), _CODE)
        if len(chunk) and offsets[-1] > offsets[0]:
            values[full] = np.frombuffer(text_buffer, np.uint8)[offsets[0] : offsets[-1]].view(_CODE)
        codes.append(values)
    return np.concatenate(codes) if codes else None


def _texts(codes: np.ndarray) -> pa.Array:
    """Returns the tokens of ``_codes``."""
    full = codes != 0
    offsets = np.concatenate([[0], np.cumsum(_CODE.itemsize * full)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(codes), pa.py_buffer(offsets), pa.py_buffer(codes[full].tobytes()))

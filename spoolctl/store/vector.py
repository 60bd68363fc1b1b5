"""A vector of bytes in one BLOB: each item ended by a NUL, as the kernel keeps argv and environ."""

from __future__ import annotations


def pack(items: list[bytes]) -> bytes:
    """The BLOB of `items`, none of which contains a NUL."""
    return b"\0".join(items) + b"\0" if items else b""


def unpack(blob: bytes | None) -> list[bytes]:
    """The items of a BLOB made by `pack`; none for None."""
    return blob.split(b"\0")[:-1] if blob else []


def pack_env(env: dict[bytes, bytes]) -> bytes | None:
    """The BLOB of an environment, whatever order it was given in; None where it is empty."""
    return pack([key + b"=" + value for key, value in sorted(env.items())]) if env else None


def unpack_env(blob: bytes | None) -> dict[bytes, bytes]:
    """The environment in a BLOB made by `pack_env`."""
    pairs = (item.partition(b"=") for item in unpack(blob))
    return {key: value for key, _, value in pairs}

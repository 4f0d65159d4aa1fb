"""Files damaged as by disks and writers: some bytes changed, lost or duplicated."""

from hypothesis import strategies as st

__all__ = ["broken"]


@st.composite
def broken(draw: st.DrawFn, originals: list[bytes]) -> bytes:
    """One of some files, damaged in up to four places."""
    data = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        # The ends of a file describe the rest of it, so they are damaged more often.
        at = draw(st.integers(0, len(data)) | st.integers(0, min(60, len(data))))
        at = draw(st.sampled_from([at, len(data) - at]))
        match draw(st.integers(0, 4)):
            case 0:
                data[at : at + 1] = draw(st.sampled_from([b"\0", b"\x01", b"\x7f", b"\x80", b"\xff"]))
            case 1:
                data[at : at + draw(st.integers(1, 8))] = draw(st.binary(min_size=1, max_size=8))
            case 2:
                del data[at : at + draw(st.integers(1, 40))]
            case 3:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case 4:
                del data[at:]
    return bytes(data)

"""A link before an S3 server that counts requests and bytes."""

from collections import Counter

from tests.support.s3.link import Request, S3Link
from tests.support.s3.server import S3Server

__all__ = ["CountingLink"]


class CountingLink(S3Link):
    """A link that also counts the bytes of the answers."""

    def __init__(self, server: S3Server) -> None:
        self.sent_bytes = 0
        super().__init__(server)

    def forward(self, request: Request, target: str, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """See `S3Link.forward`."""
        answer = super().forward(request, target, body)
        self.sent_bytes += len(answer[2])
        return answer

    def clear(self) -> None:
        """Begin to count."""
        self.requests.clear()
        self.sent_bytes = 0

    def counted(self) -> str:
        """Return the number of requests by method."""
        return ", ".join(f"{count} {method}" for method, count in sorted(Counter(self.methods()).items())) or "none"

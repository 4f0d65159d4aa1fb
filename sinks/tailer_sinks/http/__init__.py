"""The `http` sink: change rows as requests to a web service, at least once.

A web service has no transactions, so progress is in the state table: it is recorded once the endpoint has taken every
request of a transaction. After a failure the requests since then are sent again. An event that is sent again has the
same id, and a request with the same events has the same `webhook-id`.

There is one request at a time, over one connection that is kept: events arrive in the order of the table.
"""

__all__: list[str] = []

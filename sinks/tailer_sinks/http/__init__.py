"""The `http` sink: change rows as requests to a web service, at least once.

    sink          the sink: requests one after the other, halved where the endpoint wants less, dead letters
    events        rows and control events as JSON texts, each with an id of its own
    requests      the bodies of requests, and their ids and signatures
    endpoint      the client: one request until it is taken, refused, or has failed
    dead_letters  files of events that the endpoint refused
    options       the configuration, checked without I/O

A web service has no transactions, so progress is in the state table: it is recorded once the endpoint has taken every
request of a transaction. After a failure the requests since then are sent again. An event that is sent again has the
same id, and a request with the same events has the same `webhook-id`.

There is one request at a time, over one connection that is kept: events arrive in the order of the table.
"""

__all__: list[str] = []

"""The `kafka` sink: change rows as messages of a Kafka topic, exactly once for `read_committed` consumers.

Exactly once
------------

Rows and progress are messages of one transaction. Progress goes to a compacted topic of its own, as in Kafka Connect's
source connectors (KIP-618). `transactional.id` is the app_id. A producer is made in this order:

1. `init_transactions`: the previous owner of the id is fenced, and the broker finishes or aborts its open transaction.
2. The progress topic is read up to its end for `read_uncommitted`, and the markers of transactions decide which records
   count. The end for a `read_committed` consumer is before the first open transaction, even one of another stream, and
   hides later records. Of this stream none is open after step 1, and those of other streams do not matter.
3. The progress found must be that with which the pipeline began; otherwise the pipeline is asked to begin again.
4. A record claims the stream: the same progress, with this instance's name. From now on a takeover can be distinguished
   from an error, because the record names another instance. A broker that gave up a slow transaction answers the same.
   So of two instances that do all this at the same time, the later one goes on: the earlier one finds its name.
5. Before the claim is committed, the topic is read up to its offset. Step 2 may have asked a broker that does not know
   yet that another one leads, and that lacks what was committed since; the claim is stored by the leader (`acks=all`).
   If there was more, it is claimed again, in the same transaction, and the pipeline begins again as in step 3.

A pipeline whose source table was replaced goes on under another app_id. Before it takes that over, it takes over the
ids of the former tables, too, which ends their transactions: a frozen instance can commit none of them any more.

An instance that has nothing to deliver does that, too, and then asks every few seconds who owns the id.

A transaction is committed only after each delivery in it was confirmed, because not every client refuses to commit a
transaction that lost a message. After any error its outcome is unknown: the producer is discarded, and the topic is
read.

A pipeline without progress begins only if its topics have no messages of its own (`first_start`): progress may have
been lost with its topic. Progress also records the id of the topic for rows: a topic that was deleted and created again
has another id.

Order: messages of one key are in one partition, in the order of their positions. The progress of an app_id names the
topic, its number of partitions and the form of keys. If these have changed, keys would move, so the sink stops with an
error. With a `key` the pipeline pairs the images of updates by it (`Demands.key`): within a version a key is then
deleted, updated or created once, in whatever order a writer put its rows.
"""

__all__: list[str] = []

"""The `kafka` sink: change rows as messages of a Kafka topic, exactly once for `read_committed` consumers.

    sink         the sink: one transactional producer per stream, taken over, used, discarded on any error
    transaction  rows on their way into a Kafka transaction: encoding, oversized messages, counts, progress
    stream       what an instance knows of one stream: its producer, and what it saw last in the progress topic
    progress     the compacted topic that says where every stream is, and who writes it
    link         what the streams of a sink share: this instance's name, the cluster, the way to a producer
    topics       topics are created on request, and checked
    first_start  progress that was lost, told from a pipeline that never began
    encoders     which encoder makes the messages of rows (`sinks.encoding`), and what keys are made of
    records      messages that are not about a row, and dead letters
    options      the configuration, checked without I/O
    port         what a client library must do to produce; implemented by
    python_*     kafka-python: producing, topics, reading the progress topic
    confluent_*  confluent-kafka: producing, where it is installed
    answers      what brokers' error codes mean, whatever the client; security: TLS and tokens, likewise
    rows         messages as the clients want them, one by one

How it is exactly once
----------------------
Rows and progress are messages of one transaction; progress goes to a compacted topic of its own, as Kafka Connect's
source connectors do it (KIP-618). `transactional.id` is the app_id. A producer is made in this order:

1. `init_transactions`: whoever had the id is fenced, and what it left open is finished or aborted by the broker.
2. The progress topic is read up to its very end, as it is for `read_uncommitted`: the end that a `read_committed`
   consumer is told lies before the first open transaction, also before one of another stream, and hides what is behind.
3. What is found must be what the pipeline began with; otherwise it is asked to begin anew.
4. A record claims the stream: the same progress, with this instance's name. From now on an error can be told from a
   takeover: the record names someone else. A broker that gave up a slow transaction looks just the same otherwise.

A transaction is committed after each delivery in it was confirmed; clients do not all refuse to commit one that lost a
message. After any error its outcome is unknown, the producer is discarded, and the topic says what took place.

A pipeline without progress begins only where topics have no messages of its own (`first_start`): progress may have been
lost with its topic. Progress also has the id of the topic for rows: one that was deleted and created again has another.

Order: messages of one key are in one partition, in the order of their positions. An app_id's progress names the topic,
its number of partitions and what keys are made of; where these are others now, keys would move, so the sink stops and
says so. With a `key` the pipeline pairs the images of updates by it (`Demands.key`): within a version a key is then
deleted, updated or created once, whatever the order in which a writer put its rows.
"""

__all__: list[str] = []

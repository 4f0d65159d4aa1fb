"""A process that only sends messages with kafka-python: the speed of the client by itself.

Arguments: the brokers, a topic, and the number of messages. Messages, transactions and settings of the client are like
those of the benchmark. Nothing is encoded, and delivery reports are not read.
"""

import json
import sys
import time

from kafka import KafkaProducer

from tailer_sinks.kafka.options import read

__all__ = ["send"]

_VALUE_BYTES = 348


def send(bootstrap_servers: str, topic: str, count: int) -> dict[str, float]:
    """Send the messages; return `seconds` and `cpu_s`."""
    transaction_rows = read("alone", {"bootstrap_servers": bootstrap_servers}).transaction_rows
    text = json.dumps({f"column_{number}": number * 1001 for number in range(24)}).encode()[:_VALUE_BYTES]
    values = [b"%d%s" % (number, text[len(str(number)) :]) for number in range(count)]
    producer = KafkaProducer(
        bootstrap_servers=bootstrap_servers.split(","),
        transactional_id=f"alone-{topic}",
        batch_size=256 * 2**10,
        linger_ms=100,
        compression_type="lz4",
        metrics_enabled=False,
    )
    started, cpu_s = time.perf_counter(), time.process_time()
    producer.init_transactions()
    for first in range(0, count, transaction_rows):
        producer.begin_transaction()
        for value in values[first : first + transaction_rows]:
            producer.send(topic, value)
        producer.flush()
        producer.commit_transaction()
    taken = {"seconds": time.perf_counter() - started, "cpu_s": time.process_time() - cpu_s}
    producer.close()
    return taken


if __name__ == "__main__":
    print(json.dumps(send(sys.argv[1], sys.argv[2], int(sys.argv[3]))))

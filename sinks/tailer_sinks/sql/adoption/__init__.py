"""Tables that users made, for mirrors that adopt them: what they are like, and whether rows fit into them."""

__all__: list[str] = []

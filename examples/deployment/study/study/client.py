"""What the bundle would run at a hospital: training without any protection. The hospitals' own client runs instead."""

from flwr.app import Message
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message, context):
    """Send back what arrived."""
    return Message(message.content, reply_to=message)

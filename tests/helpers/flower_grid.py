"""SuperNodes in this process, with replies that get lost or late, for apps of Flower."""

import copy

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity


class Nodes(Grid):
    """Node 10 * i + 3 has the partition-id i; messages are copied, as over a network.

    app: the ClientApp of all nodes.
    lost: of the round and the partition, whether the reply is lost after the client has sent it.
    config: more entries of the nodes' configurations.
    """

    def __init__(self, app, N, *, lost=lambda r, i: False, run_config=None):
        self.app, self.lost, self.run_config, self.r = app, lost, run_config or {}, 0
        self.configs = {10 * i + 3: {"partition-id": i, "num-partitions": N} for i in range(N)}
        self.cohorts, self.errors = [], []
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # as a server's task

    def get_node_ids(self):
        return list(self.configs)

    def send_and_receive(self, messages, *, timeout=None):
        messages = [copy.deepcopy(message) for message in messages]
        training = any(message.metadata.message_type == "train" for message in messages)
        self.r += training
        replies = [self.answer(message) for message in reversed(messages)]
        self.errors += [reply.error.reason for reply in replies if reply.has_error()]
        if training:
            replies = [m for m in replies if not self.lost(self.r, m.metadata.src_node_id // 10)]
            arrived = [m.metadata.src_node_id // 10 for m in replies if not m.has_error()]
            self.cohorts.append(sorted(arrived))
        return replies

    def answer(self, message):
        node = message.metadata.dst_node_id
        context = Context(
            run_id=1,
            node_id=node,
            node_config=self.configs[node],
            state=RecordDict(),
            run_config=self.run_config,
        )
        try:
            return copy.deepcopy(self.app(message, context))
        except Exception as error:  # as Flower's SuperNode does
            return Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *_, **__):
        raise NotImplementedError

    def push_messages(self, messages):
        raise NotImplementedError

    def pull_messages(self, message_ids):
        raise NotImplementedError

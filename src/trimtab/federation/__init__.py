"""The same algorithms over real machines: a server, several sites, and nothing lost.

Whoever carries messages needs these and no more:

`protocol.site.Site(folder, name, problem).answer(request) -> reply`
    One site. `problem` is a Problem in which this site is the client of the number that the server
    gives it: `Supervised(model, loss, [train] * N, test=test)`. `close()` releases the folder.

`protocol.coordinator.Coordinator(folder, algorithm, sites, x=…, R=…, weights=…, seed=…, …)`
    The server. `run(ask)` is an iterator of events, one after each committed round; `audit(ask)`,
    `join(ask, name)` and `leave(ask, name)` may be called between two of them; `close()`.
    `storage.ledger.read_standing(folder)` and `read_journal` look at a folder that is in use.

`transport.Transport`
    The way to the sites. Its method `ask(requests, timeout)` is what the coordinator is given: it
    sends each request to the site of that name, and yields replies one at a time as they arrive.

`message.encode(message) -> bytes`, `message.decode(bytes) -> message`
    A message is JSON and arrays: `message.Message(header, arrays)`.

Rooms: message, events and log stand at the bottom; then storage, protocol and transport,
each upon those before; setup stands beside transport; processes uses all of them.
"""

"""Streams (S2): what changes in a repository, told to whoever subscribed, as it happens.

frames       what travels, both ways             patterns     which refs and topics a name stands for
window       the frames kept for catching up     access       who may see what
connection   one subscriber, as the server has it     subscriber   one subscription, as the client has it

Nothing here does I/O: text comes in, text goes out, and time is an argument. `node.streams` serves it, and
`node.following` is the client that programs use.
"""

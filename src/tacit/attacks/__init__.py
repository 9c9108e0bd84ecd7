"""What an adversary gets: its view of a round, and attacks that run on that and on nothing else.

The public protocol (method, model, loss) is known to everybody, so attacks are given it; randomness that the adversary
cannot know is not. Where the attacks meet tasks and engine is `tacit.attacks.scenario`.
"""

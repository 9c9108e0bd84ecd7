"""What an adversary observes in a round, and attacks that use that and nothing else.

The protocol (method, model, loss) is public, so attacks know it; randomness that the adversary cannot know is withheld.
`tacit.attacks.scenario` runs the rounds of a task and hands the observations to the attacks.
"""

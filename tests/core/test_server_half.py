from dataclasses import replace

import torch

import tacit
import zoo
from tacit import methods
from tacit.core import DenseRows, Messages, RunKeys, State
from tacit.core.client_half import make_messages
from tacit.core.server_half import broadcast, no_messages, read_messages, sum_messages, sum_of_total
from tacit.data import Task
from tacit.engine import initial_state
from tacit.engine.simulation import draw

KEYS = RunKeys.from_seed(0)


def private() -> tacit.Method:
    method = methods.make("fl-std-dp", {"rounds": 3, "noise": 1.0, "clip": 0.5, "sampler": "Everyone()"})
    return replace(method, budget=None)


def test_the_sum_from_a_total_is_that_of_the_messages() -> None:
    """Bound and grid follow from the broadcast; norms of rows do not exist."""
    method, task = private(), Task(model=zoo.mlp, clients=zoo.population([5, 3, 8]))
    state = initial_state(method, task)
    _, now = draw(method, 3, KEYS.at(0), 0)
    wave = zoo.wave([5, 3, 8])
    messages = make_messages(method, zoo.view_of(method, state, now), wave, now)
    seen = sum_messages(method, state, messages)
    like = no_messages(method, broadcast(method, state, now), state, now)
    unseen = sum_of_total(method, state, messages.rows.dense().sum(0), 3, like)
    assert torch.equal(unseen.total, seen.total)
    assert (unseen.weight, unseen.bound, unseen.grid_step) == (seen.weight, seen.bound, seen.grid_step)
    assert seen.squared_norms > 0 == unseen.squared_norms


def test_a_malformed_reply_concerns_only_its_client() -> None:
    method, state = methods.make("fedavg", {"rounds": 3}), State(0, torch.zeros(4))
    _, now = draw(method, 200, KEYS.at(0), 0)
    like = Messages(torch.zeros(0, dtype=torch.int64), DenseRows(torch.zeros(0, 4)), torch.zeros(0, dtype=torch.int64))
    sent = Messages(torch.tensor([5]), DenseRows(torch.ones(1, 4)), torch.tensor([9]))
    good = method.channel.message_format.pack(sent, 0, now)
    weightless = replace(sent, samples=torch.tensor([0]))
    replies = {5: good, 3: b"", 4: method.channel.message_format.pack(weightless, 0, now), 6: good}
    read, rejected = read_messages(method, replies, like, now)
    assert read.clients.tolist() == [5, 6]
    assert read.samples is not None
    assert read.samples.tolist() == [9, 9]
    assert rejected.keys() == {3, 4}
    nothing, _ = read_messages(method, {}, like, now)
    assert nothing is like
    assert state.round == 0

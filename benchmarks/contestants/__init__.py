"""The contestants: each is a script that races on command (`player`)."""

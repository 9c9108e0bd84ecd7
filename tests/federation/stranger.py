"""Log in as a user of NVFLARE and submit a job: `stranger.py NAME KIT JOB`. Prints what came of it."""

import sys

from nvflare.fuel.flare_api.flare_api import new_secure_session


def submit(name: str, kit: str, job: str) -> None:
    try:
        session = new_secure_session(name, kit, timeout=20.0)
    except Exception as error:
        sys.stdout.write(f"no answer: {type(error).__name__} {error}\n")
        return
    try:
        sys.stdout.write(f"accepted {session.submit_job(job)}\n")
    finally:
        session.close()


if __name__ == "__main__":
    submit(*sys.argv[1:])

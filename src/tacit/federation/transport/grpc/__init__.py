"""gRPC beneath a federation: every site opens one stream to the server, and is asked over it.

One method, one stream, opaque frames (`frames`). Both sides present a certificate that the other has received before
(`kits`), and a site signs the server's nonce with its identity key (`hello`). Nothing else can be called in either
process: `FROM_SERVER` and `FROM_SITE` are all kinds of frames.
"""

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # its handlers stop a process that a site's handler forks
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # strangers could fill the log otherwise

"""Start private, real servers on free loopback ports.

Nothing is installed on the system, nothing outlives the process that asked. Each server is a context manager::

    with start_redis() as server:
        app = Celery(broker=server.url)

`use_redis`, `use_rabbitmq`, `use_postgres` and `use_mariadb` first look for ``CR_TEST_REDIS_URL``,
``CR_TEST_RABBITMQ_URL``, ``CR_TEST_POSTGRES_URL`` and ``CR_TEST_MARIADB_URL``. Standard library only, and nothing of the rest of celery_reliable.
"""

from celery_reliable.testing.servers.binaries import Lookup
from celery_reliable.testing.servers.cluster import RedisCluster, start_redis_cluster
from celery_reliable.testing.servers.errors import ServerUnavailable
from celery_reliable.testing.servers.external import ExternalServer, use_mariadb, use_postgres, use_rabbitmq, use_redis
from celery_reliable.testing.servers.mariadb import start_mariadb
from celery_reliable.testing.servers.postgres import start_postgres
from celery_reliable.testing.servers.process import Server
from celery_reliable.testing.servers.rabbitmq import start_rabbitmq
from celery_reliable.testing.servers.redis import RedisServer, start_redis, start_valkey
from celery_reliable.testing.servers.resp import ReplyError, command
from celery_reliable.testing.servers.sentinel import RedisSentinel, start_redis_sentinel
from celery_reliable.testing.servers.tls import RedisTlsServer, start_redis_tls

__all__ = [
    "ExternalServer",
    "Lookup",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "RedisTlsServer",
    "ReplyError",
    "Server",
    "ServerUnavailable",
    "command",
    "start_mariadb",
    "start_postgres",
    "start_rabbitmq",
    "start_redis",
    "start_redis_cluster",
    "start_redis_sentinel",
    "start_redis_tls",
    "start_valkey",
    "use_mariadb",
    "use_postgres",
    "use_rabbitmq",
    "use_redis",
]

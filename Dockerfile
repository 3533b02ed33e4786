# One image for web, worker, Celery, beat and the event store; docker-compose.yml says which command is which.
# The embedded servers of `manage.py up` are not in it: they are development requirements.

FROM python:3.13-slim-trixie AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/venv
COPY requirements.txt /tmp/requirements.txt
RUN /opt/venv/bin/pip install --require-hashes --no-deps -r /tmp/requirements.txt \
 && /opt/venv/bin/pip uninstall --yes pip

FROM python:3.13-slim-trixie
# bubblewrap is the sandbox of the tools; tini hands signals on and collects what a tool's process leaves behind.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap git tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --system --uid 10001 --user-group --home-dir /home/kernel --create-home --shell /usr/sbin/nologin kernel
COPY --from=build /opt/venv /opt/venv
WORKDIR /app
COPY . .
ENV PATH=/opt/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# Collecting the static files needs no service; the folder for its development secret is thrown away.
RUN KERNEL_VAR=/tmp/build python manage.py collectstatic --noinput \
 && python -m compileall -q /app \
 && rm -rf /tmp/build \
 && install --directory --owner=kernel --group=kernel /data/artifacts /data/workspaces
USER 10001:10001
VOLUME ["/data"]
EXPOSE 8000
ENTRYPOINT ["tini", "--"]
CMD ["uvicorn", "kernel_project.asgi:application", "--host", "0.0.0.0", "--port", "8000", "--no-access-log"]

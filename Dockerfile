# One image for server and clients: docker build -t cflag .
# With --build-arg TORCH_INDEX=URL torch comes from an index with builds for processors alone, which are much smaller.
# With --build-arg VERSION=1.2.3 cflag says that version: the tag is not in here.
FROM python:3.11-slim-bookworm AS build
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/cflag
WORKDIR /src
COPY constraints.txt ./
RUN PIP_EXTRA_INDEX_URL="$TORCH_INDEX" /opt/cflag/bin/pip install -c constraints.txt torch==2.13.0
COPY pyproject.toml README.md LICENSE ./
COPY src src
ARG VERSION=""
RUN SETUPTOOLS_SCM_PRETEND_VERSION_FOR_CFLAG="$VERSION" /opt/cflag/bin/pip install -c constraints.txt '.[flower]'

FROM python:3.11-slim-bookworm
RUN useradd --uid 10001 --create-home --home-dir /var/lib/cflag cflag \
    && install -d -o cflag -g cflag -m 0700 /keys /runs /state /public \
    && install -d -m 0755 /data
COPY --from=build /opt/cflag /opt/cflag
ENV PATH=/opt/cflag/bin:$PATH OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 MPLCONFIGDIR=/tmp CFLAG_DATA=/data
USER cflag
WORKDIR /var/lib/cflag
VOLUME ["/keys", "/runs", "/state"]
EXPOSE 9092
# A cflag is at work: [b] and bin/ keep this line, and scripts that name it, from being taken for one. The compose file
# asks the server for its port instead.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 \
    CMD ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -Eq '[b]in/cflag (client|server|run|deploy)'"]
ENTRYPOINT ["cflag"]
CMD ["--help"]

# Targets: serve (lookups of models in a folder and of remote tables, no TensorFlow), full (serve + TensorFlow,
# model-export and object stores), load (serve + locust).
#
#   docker build --target serve -t embedding-server:serve .
#
# An edit of the code rebuilds only the two small layers at the end of each target: the dependency layers depend on the
# dependency lists alone, not on the rest of pyproject.toml. The native core depends on native/ alone, and its compiled
# dependencies are kept between builds. The optional secret `ca` lets pip and cargo trust a private certificate authority;
# without it nothing changes.

FROM python:3.11-slim-bookworm AS base
ENV PATH=/opt/venv/bin:$PATH
# The numeric ids are part of the interface: volumes are written by and readable to 10001. /models exists with that
# owner so that a new named volume mounted there takes it over.
RUN groupadd --gid 10001 embedding \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin embedding \
    && install --directory --owner=10001 --group=10001 /models


FROM python:3.11-slim-bookworm AS requirements
WORKDIR /requirements
COPY pyproject.toml ./
# locust needs nothing of the loadtest extra's tensorflow-serving-api, which only the tests' reference client uses.
RUN python -c "import pathlib, tomllib; \
project = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['project']; \
extras = project['optional-dependencies']; \
lists = {'serve': project['dependencies'] + extras['remote'], \
         'full': extras['tensorflow'] + extras['export'] + extras['stores'], \
         'load': [name for name in extras['loadtest'] if not name.startswith('tensorflow')]}; \
[pathlib.Path(f'{target}.txt').write_text('\n'.join(sorted(set(names))) + '\n') for target, names in lists.items()]"


# The compiler stays here: an image gets the one file that it makes. It needs no Python, for the core uses only the
# stable interface of Python 3.11 and later.
FROM rust:1-slim-bookworm AS native
ENV CARGO_TARGET_DIR=/native-target
WORKDIR /native
COPY native/Cargo.toml native/Cargo.lock ./
COPY native/src ./src
RUN --mount=type=cache,target=/usr/local/cargo/registry \
    --mount=type=cache,target=/native-target \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    cargo rustc --locked --release --lib --features python --crate-type cdylib \
    && strip --strip-debug -o _native.abi3.so /native-target/release/lib_native.so


FROM base AS dependencies-serve
COPY requirements.lock /requirements/
COPY --from=requirements /requirements/serve.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    python -m venv --without-pip /opt/venv \
    && pip --python /opt/venv/bin/python install -c /requirements/requirements.lock -r /requirements/serve.txt \
    && rm -rf /opt/venv/lib/python3.11/site-packages/numpy/tests /opt/venv/lib/python3.11/site-packages/numpy/*/tests


FROM dependencies-serve AS dependencies-full
COPY --from=requirements /requirements/full.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    pip --python /opt/venv/bin/python install -c /requirements/requirements.lock -r /requirements/full.txt


FROM dependencies-serve AS dependencies-load
COPY --from=requirements /requirements/load.txt /requirements/
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    pip --python /opt/venv/bin/python install -c /requirements/requirements.lock -r /requirements/load.txt


# The package, the same for every target: /opt/app is laid over the target's /opt/venv.
FROM dependencies-serve AS code
ENV PIP_CONSTRAINT=/requirements/requirements.lock
COPY pyproject.toml README.md LICENSE /src/
# The licenses of what is linked into the core go with it.
COPY native/THIRD-PARTY-NOTICES.txt /src/native/
COPY service /src/service
COPY model_export /src/model_export
COPY examples/movielens /src/examples/movielens
RUN --mount=type=cache,target=/root/.cache/pip \
    --mount=type=secret,id=ca,target=/etc/ssl/certs/ca-certificates.crt \
    pip --python /opt/venv/bin/python install --no-deps --prefix=/opt/app /src
COPY --from=native /native/_native.abi3.so /opt/app/lib/python3.11/site-packages/service/


# Whoever gets in finds no package manager and no shell. The last step that runs anything, for it needs the shell itself.
FROM base AS stripped
RUN rm -rf /usr/local/lib/python3.11/site-packages/* /usr/lib/python3/dist-packages/* /usr/local/bin/pip* /usr/bin/pip* \
        /usr/local/lib/python3.11/ensurepip /usr/lib/python3.11/ensurepip /usr/share/python-wheels \
        /usr/local/lib/python3.11/test /usr/local/lib/python3.11/idlelib /usr/local/lib/python3.11/pydoc_data \
        /usr/local/lib/python3.11/lib2to3 /usr/local/lib/python3.11/tkinter /usr/local/lib/python3.11/turtledemo \
        /usr/local/include /usr/include \
        /usr/lib/python3.11/idlelib /usr/lib/python3.11/pydoc_data \
        /usr/bin/apt* /usr/lib/apt /etc/apt /var/lib/apt /var/cache/apt /usr/bin/dpkg* /usr/sbin/dpkg* \
        /usr/lib/*/libapt-* /var/cache/debconf /usr/share/doc /usr/share/man /usr/share/locale \
        /usr/bin/perl* /usr/share/perl* /usr/lib/*/perl /usr/lib/*/perl-base /usr/lib/*/libperl.so* /usr/lib/*/gconv \
        /usr/bin/curl /usr/bin/wget /bin/su /usr/bin/su /usr/bin/passwd /usr/bin/newgrp /usr/bin/chsh /usr/bin/chfn \
        /usr/bin/gpasswd /usr/bin/mount /usr/bin/umount /bin/mount /bin/umount \
        /usr/sbin/* /usr/bin/openssl /usr/bin/tar /usr/bin/gpgv /var/lib/dpkg/info \
        /usr/lib/*/libgnutls.so* /usr/lib/*/libp11-kit.so* /usr/lib/*/libunistring.so* /usr/lib/*/libgcrypt.so* \
    && rm -f /bin/bash /usr/bin/bash /bin/rbash /usr/bin/rbash /bin/dash /usr/bin/dash /bin/sh /usr/bin/sh


# From scratch: files that a layer removes still count in the size of an image, and files that were never there do not.
FROM scratch AS runtime
# hadolint ignore=DL3067
COPY --from=stripped / /
# What is served unless a flag or a variable says otherwise. HOME: TensorFlow's dependencies write there.
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    LANG=C.UTF-8 \
    PYTHONUNBUFFERED=1 \
    EMB_MODEL_BASE_PATH=/models/movielens \
    EMB_MODEL_NAME=movielens \
    HOME=/tmp
USER 10001:10001
WORKDIR /tmp
EXPOSE 8500 8501
# The service is python itself, so it is process 1 and gets SIGTERM: it drains, then ends with 0.
ENTRYPOINT ["embedding-server"]
# Healthy means that the model is loaded. It reads the EMB_ variables: a port or an SSLConfig that is given by a flag
# instead needs a check of its own.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-I", "-m", "service.healthcheck"]


FROM runtime AS load
COPY --from=dependencies-load /opt/venv /opt/venv
COPY --from=code /opt/app /opt/venv
COPY loadtest /opt/loadtest
WORKDIR /opt
ENTRYPOINT ["locust", "-f", "/opt/loadtest/locustfile.py"]
CMD ["--host=http://127.0.0.1:8501", "--headless", "--users=8", "--run-time=20s"]
HEALTHCHECK NONE


FROM runtime AS full
COPY --from=dependencies-full /opt/venv /opt/venv
COPY --from=code /opt/app /opt/venv


# Debug symbols of uvloop (12 MB), and parts of numpy that build other packages. The stage of the core has binutils.
FROM native AS dependencies-small
COPY --from=dependencies-serve /opt/venv /opt/venv
WORKDIR /opt/venv/lib/python3.11/site-packages
RUN strip --strip-unneeded uvloop/*.so \
    && rm -rf numpy/f2py numpy/distutils numpy/_core/include numpy/_core/lib numpy/random/lib \
    && find /opt/venv '(' -name '*.pyi' -o -name '*.pxd' -o -name '*.pyx' ')' -delete


# Last, so that a build that names no target makes this one.
FROM runtime AS serve
COPY --from=dependencies-small /opt/venv /opt/venv
COPY --from=code /opt/app /opt/venv

# A shell beside the binary, for what is done once: the jobs of the compose file's profile "managed". Its context is
# deploy, its base the image iop:dev.
ARG IOP_IMAGE=iop:dev
ARG SHELL_IMAGE=busybox:1.37
FROM ${IOP_IMAGE} AS iop
FROM ${SHELL_IMAGE}
COPY --from=iop /iop /bin/iop
COPY managed.sh /managed.sh
RUN mkdir -p /run/ca /run/edge /run/node && chown 65532:65532 /run/ca /run/edge /run/node && chmod 700 /run/ca /run/edge /run/node
USER 65532:65532
WORKDIR /run/ca
ENTRYPOINT ["/bin/sh", "/managed.sh"]

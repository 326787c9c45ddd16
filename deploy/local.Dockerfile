# The image of deploy/Dockerfile from a binary that was built outside, so that no base image has to be pulled. Its context
# is bin/image, which `make docker` fills: the binary, the directories that must belong to the user below, and the
# certificate authorities of the machine that built it.
FROM scratch
COPY --chown=65532:65532 . /
# Neither root nor a user of any host.
USER 65532:65532
WORKDIR /var/lib/iop
ENV IOP_EDGE_STATE=sqlite:///var/lib/iop/iop.db
EXPOSE 8480 8481 8482
# The Edge's. A Node listens nowhere and is watched at its Edge: run it with --no-healthcheck.
HEALTHCHECK --interval=10s --timeout=5s --start-period=20s CMD ["/iop", "status"]
ENTRYPOINT ["/iop"]
CMD ["--help"]

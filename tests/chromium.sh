#!/bin/sh
# Chromium and its WebDriver for `make page`. As root on Debian they are installed, else named.
set -eu
command -v chromium >/dev/null && command -v chromedriver >/dev/null && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "make page needs chromium and chromedriver; Debian's packages are chromium and chromium-driver" >&2
    exit 1
fi
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium chromium-driver

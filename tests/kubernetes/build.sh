#!/usr/bin/env bash
# Makes the programs of a Kubernetes control plane and node from the source package of Debian 12, which has them all (its
# binary packages have only the client), into a folder. Takes some twenty minutes on two cores, once.
#
#   tests/kubernetes/build.sh FOLDER
#
# It installs the compilers and, for the node, containerd, runc, the network plugins and etcd from Debian's packages.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: build.sh FOLDER}" && realpath "$1")
version=1.20.5+really1.20.2-1.1+deb12u1
programs=(kube-apiserver kube-controller-manager kube-scheduler kubelet)
for program in "${programs[@]}" pause; do [[ -x $folder/$program ]] || missing=1; done
[[ ${missing:-} ]] || exit 0

work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
apt-get install -qq -y --no-install-recommends golang-go gcc libc6-dev make rsync dpkg-dev \
  etcd-server containerd runc containernetworking-plugins iproute2 openssl prometheus >"$work/apt.log"
mkdir -p "$work/lists/partial" "$work/cache/archives/partial"
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -1)
echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror bookworm main" >"$work/sources.list"
apt=(apt-get -qq -o "Dir::Etc::SourceList=$work/sources.list" -o Dir::Etc::SourceParts=- -o "Dir::State::Lists=$work/lists"
  -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
cd "$work"
"${apt[@]}" update
"${apt[@]}" source --download-only "kubernetes=$version"
dpkg-source -x kubernetes_*.dsc kubernetes >/dev/null
cat >version <<'END'
KUBE_GIT_COMMIT=debian
KUBE_GIT_TREE_STATE=clean
KUBE_GIT_VERSION=v1.20.2
KUBE_GIT_MAJOR=1
KUBE_GIT_MINOR=20
END
export GOPATH=$work/kubernetes/.go GOCACHE=$work/go-cache HOME=$work CGO_ENABLED=0 KUBE_GIT_VERSION_FILE=$work/version
mkdir -p "$GOPATH/src/k8s.io" && ln -s ../../.. "$GOPATH/src/k8s.io/kubernetes"
cd kubernetes
for program in "${programs[@]}"; do
  make WHAT="cmd/$program" >"$folder/$program.log" 2>&1 || { tail -20 "$folder/$program.log" >&2; exit 1; }
  install -s "_output/bin/$program" "$folder/"
done
gcc -O2 -static -o "$folder/pause" build/pause/linux/pause.c 2>/dev/null || gcc -O2 -static -o "$folder/pause" build/pause/pause.c

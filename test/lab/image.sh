#!/usr/bin/env bash
# Makes the disk of the lab's machines: a bare Debian or Ubuntu with an SSH server and Python, and nothing that Gantry needs. The packages that
# the playbook installs lie in /srv/archive, an archive that apt knows, so that a machine needs no network but the lab's.
#
#   image.sh bookworm|trixie|noble FOLDER          makes disk.img, vmlinuz and initrd.img there
#
# Root is needed, for debootstrap and chroot. What it makes follows from this file alone, so its checksum names the result.
set -euo pipefail
export LC_ALL=C PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"

readonly suite=$1 size=24G
# What an installed system has. The NFS client, which is not enabled, is there for the time that its scripts would take.
readonly base=apparmor,ca-certificates,dbus,iproute2,iputils-ping,kmod,libpam-systemd,netbase,nfs-common,openssh-server,procps,python3,python3-apt,sudo,systemd,systemd-sysv,udev
# What the playbook and the documents may ask for, with all that it depends on.
readonly later=(acl chrony containerd curl e2fsprogs jq nfs-kernel-server nftables runc wireguard-tools)

out=$(realpath "$2")
scratch=$(mktemp -d "$out/scratch.XXXXXX")
root=$scratch/root

# Namespaces of its own: nothing stays mounted, whatever happens, and nothing that a package starts goes on.
# shellcheck disable=SC2016 # $1 is the inner shell's
inside() {
	unshare --mount --pid --fork --kill-child --ipc bash -euc '
		root=$1
		shift
		mount --make-rprivate /
		mount -t proc proc "$root/proc"
		exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C HOME=/root DEBIAN_FRONTEND=noninteractive \
			chroot "$root" "$@"
	' _ "$root" "$@"
}

apt() { inside apt-get -qq -y --no-install-recommends -o Acquire::Retries=3 -o Dpkg::Use-Pty=0 "$@"; }

put() { install -D -m "$1" /dev/stdin "$root/$2"; }

# Debian has no package of Ubuntu's keys: Ubuntu's own has them, of a known checksum.
readonly keyring=$scratch/keyring/usr/share/keyrings/ubuntu-archive-keyring.gpg
get_keyring() {
	local -r file=ubuntu-keyring_2023.11.28.1_all.deb sum=36de43b15853ccae0028e9a767613770c704833f82586f28eb262f0311adb8a8
	curl -sSf --retry 3 -o "$scratch/$file" "http://archive.ubuntu.com/ubuntu/pool/main/u/ubuntu-keyring/$file"
	sha256sum --quiet --check - <<<"$sum  $scratch/$file"
	dpkg-deb -x "$scratch/$file" "$scratch/keyring"
}

system() {
	local kernel
	local -a how
	case $suite in
	bookworm | trixie)
		kernel=linux-image-cloud-amd64
		how=("$suite" "$root" http://deb.debian.org/debian)
		;;
	noble)
		kernel=linux-image-virtual
		get_keyring
		# Debian's debootstrap does not know it by name: Ubuntu's are all made alike.
		how=(--keyring="$keyring" "$suite" "$root" http://archive.ubuntu.com/ubuntu gutsy)
		;;
	*)
		echo "image.sh: no system $suite" >&2
		return 1
		;;
	esac
	unshare --mount --pid --fork --kill-child --mount-proc debootstrap --variant=minbase --include="$base" "${how[@]}"
	if [ "$suite" = noble ]; then
		printf 'deb http://archive.ubuntu.com/ubuntu %s main\n' noble noble-updates noble-security | put 0644 etc/apt/sources.list
	fi
	put 0755 usr/sbin/policy-rc.d <<<$'#!/bin/sh\nexit 101'
	cp /etc/resolv.conf "$root/etc/resolv.conf"
	# A small start of the kernel: it is emulated.
	put 0644 etc/initramfs-tools/conf.d/lab <<<$'MODULES=list\nCOMPRESS=gzip\nRESUME=none\nFSTYPE=ext4'
	put 0644 etc/initramfs-tools/modules <<<$'virtio_pci\nvirtio_blk\next4\ncrc32c_generic'
	apt update
	apt install initramfs-tools "$kernel"
}

# archive puts the packages that are installed later where apt of the machine finds them.
archive() {
	apt --download-only install "${later[@]}"
	mkdir -p "$root/srv/archive"
	# Without compression, which would take an emulated processor minutes to undo.
	# shellcheck disable=SC2016 # the inner shell's
	printf '%s\0' "$root"/var/cache/apt/archives/*.deb | xargs -0 -P 2 -I{} bash -euc '
		dir=$(mktemp -d "$2/deb.XXXXXX")
		dpkg-deb -R "$1" "$dir"
		dpkg-deb --root-owner-group -Znone --build "$dir" "$3/${1##*/}" >/dev/null
		rm -rf "$dir"
	' _ {} "$scratch" "$root/srv/archive"
	rm -rf "$root"/var/cache/apt/archives/*.deb
	(cd "$root/srv/archive" && dpkg-scanpackages --multiversion . 2>/dev/null >Packages)
	rm -rf "$root"/var/lib/apt/lists/* "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/*
	put 0644 etc/apt/sources.list <<<'deb [trusted=yes] file:/srv/archive ./'
	inside apt-get -qq update
}

# settings makes a machine of it. Name, address and key come with the kernel's command line.
settings() {
	rm "$root/usr/sbin/policy-rc.d"
	: >"$root/etc/machine-id"
	rm -f "$root/var/lib/dbus/machine-id" # systemd would take it for its own, on all machines
	: >"$root/etc/resolv.conf"
	put 0644 etc/fstab <<<'/dev/vda / ext4 errors=panic 0 1'
	put 0644 etc/systemd/system.conf.d/lab.conf <<<$'[Manager]\nDefaultTimeoutStopSec=15s'
	put 0644 etc/ssh/sshd_config.d/lab.conf <<<$'PermitRootLogin prohibit-password\nUseDNS no'
	put 0644 etc/modprobe.d/lab.conf <<<'blacklist pcspkr'
	# The first link is the way for SSH from outside, and leads nowhere else; the second is the network that the machines share.
	put 0644 etc/systemd/network/10-outside.network <<-'END'
		[Match]
		Name=eth0
		[Network]
		Address=10.0.2.15/24
		IPv6AcceptRA=no
		LinkLocalAddressing=no
	END
	put 0755 usr/local/sbin/lab-seed <<-'END'
		#!/bin/sh -e
		for word in $(cat /proc/cmdline); do
			case $word in
			lab.name=*) name=${word#*=} ;;
			lab.address=*) address=${word#*=} ;;
			lab.gateway=*) gateway=${word#*=} ;;
			lab.hosts=*) hosts=$(echo "${word#*=}" | tr ',' '\n' | sed 's/=/ /') ;;
			lab.key=*) key=${word#*=} ;;
			esac
		done
		echo "$name" >/etc/hostname
		hostname "$name"
		printf '127.0.0.1 localhost\n%s\n' "$hosts" >/etc/hosts
		mkdir -p -m 0700 /root/.ssh
		echo "ssh-ed25519 $key" >/root/.ssh/authorized_keys
		printf '[Match]\nName=eth1\n[Network]\nAddress=%s/24\nGateway=%s\nIPv6AcceptRA=no\nLinkLocalAddressing=no\n' "$address" "$gateway" >/etc/systemd/network/20-lab.network
	END
	put 0644 etc/systemd/system/lab-seed.service <<-'END'
		[Unit]
		Description=Name, address and key of this machine in the lab
		DefaultDependencies=no
		RequiresMountsFor=/etc /root
		After=systemd-remount-fs.service
		Before=sysinit.target systemd-networkd.service
		[Service]
		Type=oneshot
		ExecStart=/usr/local/sbin/lab-seed
		RemainAfterExit=yes
		[Install]
		WantedBy=sysinit.target
	END
	# Ubuntu has systemd listen for sshd, which a unit of its own does as well.
	if [ -e "$root/usr/lib/systemd/system/ssh.socket" ]; then inside systemctl -q disable ssh.socket; fi
	inside systemctl -q enable lab-seed.service systemd-networkd.service ssh.service
	# Profiles of programs that are not here, which an emulated processor takes a third of the boot to read. Containerd loads its own.
	find "$root/etc/apparmor.d" -maxdepth 1 -type f -not -name unprivileged_userns -delete
	put 0644 etc/dpkg/dpkg.cfg.d/lab <<<'force-unsafe-io'
	inside systemctl -q disable nfs-client.target rpcbind.service rpcbind.socket
	inside systemctl -q mask apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service \
		fstrim.timer getty@tty1.service systemd-binfmt.service systemd-pstore.service
}

mkdir "$root"
chmod 0755 "$root"
trap 'rm -rf --one-file-system "$scratch"' EXIT
system
archive
settings
cp --dereference "$root"/boot/vmlinuz-* "$out/vmlinuz"
cp --dereference "$root"/boot/initrd.img-* "$out/initrd.img"
rm -f "$root"/boot/initrd.img-* "$root"/var/log/*.log "$root"/var/log/apt/*
mke2fs -q -t ext4 -L lab -N 400000 -E lazy_itable_init=1,lazy_journal_init=1,root_owner=0:0 -d "$root" "$scratch/disk.img" "$size"
mv "$scratch/disk.img" "$out/disk.img"

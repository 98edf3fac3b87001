// Inside measures figures that need real volumes. `make bench` runs it in a virtual node with two blank disks,
// /dev/vda and /dev/vdb, the driver at /flexlvm and test/bench/peak at /peak. With the argument doors, it only
// compares the two drivers; the CSI driver is at /csi. With the argument snapshots and the number of runs per side,
// it measures snapshots, and the cost of snapshots and encryption for a writer; fio is in /fio.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/flexlvm/flexlvm/internal/volume"
	"github.com/flexlvm/flexlvm/test/bench/figure"
)

const (
	group   = "flexlvm"
	large   = "large" // a group with 500 volumes
	target  = "/mnt/pod"
	driver  = "/flexlvm"
	peak    = "/peak" // test/bench/peak
	size    = 64 * volume.MiB
	fsUUID  = "0d9ee5ba-5b9b-4c8e-8d7e-0f4b8f0c6a11"
	cluster = "6e2c0b0a-92a7-4b52-a9f5-2f7b3f1f8a01"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "doors" {
		f, err := doors()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(f)
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "snapshots" {
		if err := snapshots(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	rss, err := memory()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Printf("\nmemory of the driver in a mount of an existing volume: %.1f MiB at most (target ≤ 25 MiB)\n", float64(rss)/1024)
}

// memory returns the driver's peak resident memory in a mount, in KiB.
func memory() (int64, error) {
	call := append([]string{peak}, mountCall(group, "pvc-existing")...)
	out, err := exec.Command(call[0], call[1:]...).Output()
	if err != nil {
		return 0, fmt.Errorf("%v: %w", call, err)
	}
	rss, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%v: %w", call, err)
	}
	return rss, unmount()
}

func measure() error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	for name, disk := range map[string]string{group: "/dev/vda", large: "/dev/vdb"} {
		if err := figure.Command(driver, "vg", "create", "--name", name, disk)(); err != nil {
			return err
		}
	}
	// Five volumes. The first one is mounted repeatedly.
	for _, name := range []string{"pvc-existing", "pvc-2", "pvc-3", "pvc-4", "pvc-5"} {
		if err := figure.Command(mountCall(group, name)...)(); err != nil {
			return err
		}
		if err := unmount(); err != nil {
			return err
		}
	}
	for _, take := range []func() (figure.Figure, error){existing, first, many, round} {
		f, err := take()
		if err != nil {
			return err
		}
		fmt.Println(f)
	}
	return nil
}

// mountCall returns the command that kubelet executes.
func mountCall(group, name string) []string {
	options, _ := json.Marshal(map[string]string{
		"volumeGroup": group, "size": strconv.FormatInt(int64(size), 10), "clusterUID": cluster,
		"kubernetes.io/fsType": "xfs", "kubernetes.io/readwrite": "rw",
		"kubernetes.io/pvOrVolumeName": name, "kubernetes.io/pod.namespace": "default",
	})
	return []string{driver, "mount", target, string(options)}
}

func device(name string) string {
	return "/dev/mapper/" + volume.DeviceName(group, volume.Name(name))
}

func unmount() error { return unix.Unmount(target, 0) }

// existing compares mounting an existing volume with the mount command on the same device.
func existing() (figure.Figure, error) {
	call := mountCall(group, "pvc-existing")
	return figure.Compare("mount of an existing volume ÷ `mount`", 40, 1.0,
		figure.Side{Run: figure.Command(call...), After: unmount},
		figure.Side{Run: figure.Command("mount", "-t", "xfs", "-o", "prjquota", device("pvc-existing"), target), After: unmount})
}

// waitSettled waits until the driver's work after a first mount is done. Otherwise it would continue into the next
// round.
func waitSettled(name string) error {
	for range 500 {
		out, err := exec.Command("lvs", "--noheadings", "-o", "lv_tags", group+"/"+name).Output()
		if err != nil {
			return fmt.Errorf("look at the volume's tags: %w", err)
		}
		if strings.Contains(string(out), volume.Ready.Tag()) {
			time.Sleep(200 * time.Millisecond) // the driver still writes its record
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return fmt.Errorf("volume %s did not become ready", name)
}

// first compares a first mount with a line of shell that runs the same three programs with the same flags. The time
// is the call's only: the driver changes the volume's tags from creating to ready after its response.
func first() (figure.Figure, error) {
	const name = "pvc-first"
	remove := func() error {
		if err := waitSettled(name); err != nil {
			return err
		}
		if err := unmount(); err != nil {
			return err
		}
		if err := os.RemoveAll("/var/lib/flexlvm/volumes/flexlvm/" + name); err != nil {
			return err
		}
		return figure.Command("lvremove", "--yes", group+"/"+name)()
	}
	tags := volume.Tags{State: volume.Ready, FS: fsUUID, Size: size, Namespace: "default", Cluster: cluster, Kind: volume.Claim}
	line := "lvcreate --yes --wipesignatures y --zero y --type linear"
	for _, t := range tags.Strings() {
		line += " --addtag " + t
	}
	line += fmt.Sprintf(" --size %db --name %s -- %s", int64(volume.XFSDeviceSize(size, 0)), name, group)
	line += fmt.Sprintf(" && mkfs.xfs -f -K -q -m crc=1,finobt=1,rmapbt=0,reflink=1,uuid=%s -d agcount=4 -b size=4096 -i size=512 -l internal=1,size=%d %s",
		fsUUID, int64(volume.LogSize(size)), device(name))
	line += fmt.Sprintf(" && mount -t xfs -o prjquota %s %s", device(name), target)
	return figure.Compare("first mount ÷ `lvcreate && mkfs.xfs && mount`", 20, 1.15,
		figure.Side{Run: figure.Command(mountCall(group, name)...), After: remove},
		figure.Side{Run: figure.Command("sh", "-c", line), After: remove})
}

// many compares mounting an existing volume among 500 with mounting one among 5, in two groups on the same node.
func many() (figure.Figure, error) {
	call := mountCall(large, "pvc-existing")
	if err := figure.Command(call...)(); err != nil {
		return figure.Figure{}, err
	}
	if err := unmount(); err != nil {
		return figure.Figure{}, err
	}
	for i := range 499 {
		err := figure.Command("lvcreate", "--yes", "--wipesignatures", "n", "--zero", "n", "--size", "4m", "--name", "other"+strconv.Itoa(i), large)()
		if err != nil {
			return figure.Figure{}, err
		}
	}
	return figure.Compare("mount of an existing volume, 500 in the group ÷ 5", 40, 1.2,
		figure.Side{Run: figure.Command(call...), After: unmount},
		figure.Side{Run: figure.Command(mountCall(group, "pvc-existing")...), After: unmount})
}

package cluster

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/flexlvm/flexlvm/test/vm"
)

// nodeFiles are the scripts and configuration of a node, /seed there.
//
//go:embed node
var nodeFiles embed.FS

// ports are virtio ports of a node whose output is kept as a log each.
var ports = []string{"kernel", "sshd", "containerd", "kubelet"}

// prepareNodes makes the disks of all nodes and returns their machines.
func prepareNodes(ctx context.Context, dir string, cfg Config, machine nodeMachine, tools string, ca *authority) ([]program, error) {
	login, err := os.ReadFile(filepath.Join(dir, sshKey+".pub"))
	if err != nil {
		return nil, fmt.Errorf("prepare nodes: %w", err)
	}
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		return nil, errors.New("prepare nodes: qemu-system-x86_64 is missing; install the package qemu-system-x86")
	}
	images := filepath.Join(dir, "images.img")
	if err := imagesDisk(ctx, images, cfg.Images); err != nil {
		return nil, err
	}
	var nodes []program
	for i := 1; i <= cfg.Nodes; i++ {
		files := map[string][]byte{"authorized_keys": login, "ca.crt": ca.pem, "node.env": nodeEnv(i, cfg.Nodes)}
		if err := kubeletFiles(files, i, ca); err != nil {
			return nil, err
		}
		base := filepath.Join(dir, nodeName(i))
		if err := makeInitrd(base+"-initrd", machine.Initrd, files); err != nil {
			return nil, err
		}
		if err := vm.CreateOverlay(ctx, base+"-root.qcow2", machine.NodeDisk); err != nil {
			return nil, err
		}
		if err := makeSparse(base+"-data.img", cfg.DiskSize); err != nil {
			return nil, err
		}
		disks := []disk{
			{file: base + "-root.qcow2", format: "qcow2", serial: rootSerial},
			{file: base + "-data.img", format: "raw"},
			{file: tools, format: "raw", readonly: true},
			{file: images, format: "raw", readonly: true},
		}
		argv := append([]string{qemu}, machineArgs(base, i, cfg, machine, disks)...)
		nodes = append(nodes, program{Name: nodeName(i), Argv: argv, Again: true})
	}
	return nodes, nil
}

// rootSerial is by what the image's first program finds the root disk.
const rootSerial = "flexlvm-root"

// disk is a virtio disk; the first of a machine is vda there, and so on.
type disk struct {
	file, format, serial string
	readonly             bool
}

func (d disk) args(n int) []string {
	drive := fmt.Sprintf("if=none,id=disk%d,format=%s,file=%s", n, d.format, d.file)
	if d.readonly {
		drive += ",readonly=on"
	} else {
		// What the guest flushed survives the end of QEMU, as in a power cut;
		// what it did not is lost with its memory.
		drive += ",cache=writeback,discard=unmap"
	}
	device := fmt.Sprintf("virtio-blk-pci,drive=disk%d", n)
	if d.serial != "" {
		device += ",serial=" + d.serial
	}
	return []string{"-drive", drive, "-device", device}
}

func machineArgs(base string, i int, cfg Config, machine nodeMachine, disks []disk) []string {
	args := append([]string{"-name", nodeName(i), "-nodefaults", "-no-user-config", "-display", "none", "-machine", "q35", "-no-reboot"}, machine.accel...)
	args = append(args,
		"-smp", fmt.Sprint(cpus(cfg.Nodes)), "-m", fmt.Sprint(cfg.MemoryMiB),
		"-kernel", machine.Kernel, "-initrd", base+"-initrd",
		"-append", "console=ttyS0 quiet net.ifnames=0 no_timer_check mitigations=off flexlvm.root=rw flexlvm.init=/seed/init",
		"-chardev", "file,id=console,append=on,path="+base+"-console.log", "-serial", "chardev:console",
		"-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng",
		"-netdev", "tap,id=net,script=no,downscript=no,ifname="+nodeName(i),
		"-device", fmt.Sprintf("virtio-net-pci,romfile=,netdev=net,mac=52:54:00:88:00:%02x", i),
		"-device", "virtio-serial-pci")
	for n, d := range disks {
		args = append(args, d.args(n)...)
	}
	for _, port := range ports {
		args = append(args,
			"-chardev", fmt.Sprintf("file,id=%s,append=on,path=%s-%s.log", port, base, port),
			"-device", fmt.Sprintf("virtserialport,chardev=%[1]s,name=%[1]s", port))
	}
	return args
}

// cpus is how many virtual processors a node gets: with more of them than real
// ones, an emulated kernel waits for itself.
func cpus(nodes int) int { return min(2, max(1, runtime.NumCPU()/max(1, nodes))) }

// nodeEnv is what the node's scripts know of it.
func nodeEnv(i, nodes int) []byte {
	var routes []string
	for other := 1; other <= nodes; other++ {
		if other != i {
			routes = append(routes, podRange(other)+"="+nodeAddress(other))
		}
	}
	return fmt.Appendf(nil, "NODE=%s\nADDRESS=%s\nGATEWAY=%s\nPOD_CIDR=%s\nROUTES=%q\n",
		nodeName(i), nodeAddress(i), controlAddress, podRange(i), strings.Join(routes, " "))
}

func kubeletFiles(files map[string][]byte, i int, ca *authority) error {
	client := subject{name: "system:node:" + nodeName(i), groups: []string{"system:nodes"}}
	kubeconfig, err := ca.kubeconfig(client)
	if err != nil {
		return err
	}
	client.hosts = []string{nodeAddress(i), nodeName(i)}
	serving, err := ca.issue(client)
	if err != nil {
		return err
	}
	files["kubelet.kubeconfig"], files["kubelet.crt"], files["kubelet.key"] = kubeconfig, serving.cert, serving.key
	return nil
}

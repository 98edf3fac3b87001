package cluster

import (
	"context"
	"embed"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/flexlvm/flexlvm/test/vm"
)

// nodeFiles are a node's scripts and configuration, in /seed on the node.
//
//go:embed node
var nodeFiles embed.FS

// ports are a node's output lines, each of which is kept as a log.
var ports = []string{"kernel", "sshd", "containerd", "kubelet"}

// prepareNodes creates the disks of all nodes and returns their machines.
func prepareNodes(ctx context.Context, dir string, cfg Config, backend vm.Backend, tools string, ca *authority) ([]program, error) {
	login, err := os.ReadFile(filepath.Join(dir, sshKey+".pub"))
	if err != nil {
		return nil, fmt.Errorf("prepare nodes: %w", err)
	}
	images := filepath.Join(dir, "images.img")
	if err := imagesDisk(ctx, images, cfg.Images); err != nil {
		return nil, err
	}
	cpus, err := vm.NodeCPUs(fairCPUs(cfg.Nodes))
	if err != nil {
		return nil, err
	}
	var nodes []program
	for i := 1; i <= cfg.Nodes; i++ {
		files := map[string][]byte{"authorized_keys": login, "ca.crt": ca.pem, "node.env": nodeEnv(i, cfg.Nodes)}
		if err := kubeletFiles(files, i, ca); err != nil {
			return nil, err
		}
		base := filepath.Join(dir, nodeName(i))
		if err := makeInitrd(base+"-initrd", backend.Initrd, files); err != nil {
			return nil, err
		}
		if err := backend.CreateOverlay(ctx, base+"-root", backend.NodeDisk); err != nil {
			return nil, err
		}
		if err := makeSparse(base+"-data.img", cfg.DiskSize); err != nil {
			return nil, err
		}
		drives := []vm.Drive{
			{Path: base + "-root", Base: backend.NodeDisk, Serial: vm.RootSerial},
			// Data that the guest flushed survives a power cut. Data that it did not flush is lost with its memory.
			{Path: base + "-data.img"},
			{Path: tools, ReadOnly: true},
			{Path: images, ReadOnly: true},
		}
		blank, err := blankDisks(base, cfg.BlankDisks)
		if err != nil {
			return nil, err
		}
		machine, err := backend.Program(hardware(base, i, cpus, cfg, append(drives, blank...)))
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, program{Name: nodeName(i), Program: machine, Again: true})
	}
	return nodes, nil
}

func blankDisks(base string, n int) (drives []vm.Drive, err error) {
	for i := 1; i <= n; i++ {
		d := vm.Drive{Path: fmt.Sprintf("%s-blank-%d.img", base, i), Serial: fmt.Sprintf("blank-%d", i)}
		if err := makeSparse(d.Path, 4<<30); err != nil {
			return nil, err
		}
		drives = append(drives, d)
	}
	return drives, nil
}

func hardware(base string, i, cpus int, cfg Config, drives []vm.Drive) vm.Hardware {
	h := vm.Hardware{
		Initrd: base + "-initrd",
		Append: []string{"quiet", "flexlvm.root=rw", "flexlvm.init=/seed/init"},
		Dir:    filepath.Dir(base), Console: base + "-console.log",
		CPUs: cpus, Memory: cfg.MemoryMiB,
		Drives: drives,
		NICs:   []vm.NIC{{Tap: nodeName(i), MAC: fmt.Sprintf("52:54:00:88:00:%02x", i)}},
	}
	for _, port := range ports {
		h.Ports = append(h.Ports, vm.Port{Name: port, File: fmt.Sprintf("%s-%s.log", base, port)})
	}
	return h
}

// fairCPUs returns the number of virtual processors per node: with more of them than real ones, an emulated kernel
// waits for itself.
func fairCPUs(nodes int) int { return min(2, max(1, runtime.NumCPU()/max(1, nodes))) }

// nodeEnv returns the node's settings for its scripts.
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

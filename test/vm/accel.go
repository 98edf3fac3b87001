package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// probeLimit is how long a guest may take to boot under KVM. It takes well under
// a second where KVM works.
const probeLimit = 6 * time.Second

var (
	// Without arch-capabilities, a register that KVM inside of some virtual
	// machines offers and then refuses to set.
	kvmArguments = []string{"-accel", "kvm", "-cpu", "host,-arch-capabilities"}
	tcgArguments = []string{"-accel", "tcg,thread=multi", "-cpu", "max"}
)

// Accelerator returns the arguments that make qemu fast on this machine: KVM
// where a guest really boots under it. That /dev/kvm exists says little: in some
// virtual machines it is there and a stock kernel dies in it. The answer is kept
// until the machine is booted again.
func Accelerator(ctx context.Context, images Images) ([]string, error) {
	kvm, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return tcgArguments, nil
	}
	_ = kvm.Close()
	cache, err := CacheDir()
	if err != nil {
		return nil, err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	rootfs := filepath.Base(filepath.Dir(images.Kernel))
	dir := filepath.Join(cache, "accel-"+strings.TrimSpace(string(boot))+"-"+rootfs)
	err = buildOnce(ctx, dir, nil, func(dir string) error {
		answer := "tcg"
		if bootsUnderKVM(ctx, images) {
			answer = "kvm"
		}
		if ctx.Err() != nil {
			return ctx.Err() // the probe was cut short and says nothing
		}
		return os.WriteFile(filepath.Join(dir, "answer"), []byte(answer), 0o644)
	})
	if err != nil {
		return nil, fmt.Errorf("probe KVM: %w", err)
	}
	answer, err := os.ReadFile(filepath.Join(dir, "answer"))
	if err != nil {
		return nil, fmt.Errorf("probe KVM: %w", err)
	}
	if err := prune(filepath.Join(cache, "accel-*"), time.Now().Add(-unusedFor)); err != nil {
		return nil, err
	}
	if string(answer) == "kvm" {
		return kvmArguments, nil
	}
	return tcgArguments, nil
}

func bootsUnderKVM(ctx context.Context, images Images) bool {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	m, err := prepare(ctx, Config{images: images, accel: kvmArguments})
	if err != nil {
		return false
	}
	defer m.Close()
	return m.Boot(ctx) == nil
}

// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"fmt"
	"syscall"
	"time"
	"unsafe"
)

const (
	rtmgrpLink  = 1 // linux/rtnetlink.h, RTMGRP_LINK: joining it needs no capability
	ifNameBytes = 16
	ifReqBytes  = 40 // struct ifreq, netdevice(7)
)

// cablePoll is how often a cable is looked at when the kernel says nothing; tests shorten it.
var cablePoll = 5 * time.Second

// watchCable returns a channel that is closed once the network interface is gone. A cable dies with the namespace of its
// other end (veth(4)), so its loss says that the container there has ended, with nobody on the host to tell. It is an
// error when there is no such interface: cables are plugged before this program starts, and never again.
func watchCable(name string) (<-chan struct{}, error) {
	if name == "" || len(name) >= ifNameBytes {
		return nil, fmt.Errorf("%q is no name of a network interface", name)
	}
	// Listen first, look then: nothing can be lost in between.
	news, err := linkNews()
	if err != nil {
		return nil, err
	}
	if linkGone(name) {
		return nil, fmt.Errorf("there is no network interface %s", name)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		defer syscall.Close(news)
		for !linkGone(name) {
			awaitNews(news)
		}
	}()
	return gone, nil
}

// linkNews is a socket on which the kernel tells of every change of this namespace's links.
func linkNews() (int, error) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		return -1, fmt.Errorf("netlink: %w", err)
	}
	limit := syscall.NsecToTimeval(cablePoll.Nanoseconds())
	if err = syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &limit); err == nil {
		err = syscall.Bind(fd, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK, Groups: rtmgrpLink})
	}
	if err != nil {
		syscall.Close(fd)
		return -1, fmt.Errorf("netlink: %w", err)
	}
	return fd, nil
}

// awaitNews waits for a change, or for cablePoll. What the message says does not matter: the kernel is asked again. It
// may be that messages were lost (ENOBUFS), which is news as well.
func awaitNews(fd int) {
	var message [4096]byte
	_, _, err := syscall.Recvfrom(fd, message[:], 0)
	switch err {
	case nil, syscall.EINTR, syscall.EAGAIN, syscall.ENOBUFS:
	default:
		time.Sleep(cablePoll)
	}
}

// linkGone is true only when the kernel says so (ENODEV): a failure to ask is no sign of anything.
func linkGone(name string) bool {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer syscall.Close(fd)
	var request [ifReqBytes]byte
	copy(request[:ifNameBytes-1], name)
	_, _, code := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.SIOCGIFINDEX, uintptr(unsafe.Pointer(&request[0])))
	return code == syscall.ENODEV
}

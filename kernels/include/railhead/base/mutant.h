// Mutants: the protocols with one deliberate mistake each. They prove that the model target detects such a mistake. In every other target
// mutated() is a constant false, and no code of a mutant remains.
#ifndef RAILHEAD_KERNELS_MUTANT_H_
#define RAILHEAD_KERNELS_MUTANT_H_

#include "railhead/base/target.h"

namespace railhead {

// One mistake each. `-DRH_MUTANT=k` and the model's `--mutant k` take these numbers. model/mutants.h lists the names, and the scenario
// that must detect each.
enum class Mutant : int {
  kNone = 0,
  // packets.h
  kOneHalf = 1,
  kFirstElementUnchecked = 2,
  kSecondElementUnchecked = 3,
  kSecondPacketUnchecked = 4,
  kOnePhase = 5,
  kNoWrapClear = 6,
  kClearOnlyLastEpoch = 7,
  kClearBeforeRead = 8,
  kNoFenceAfterClear = 9,
  kNoFenceInFirstEpoch = 10,
  kEpochZero = 11,
  kEpochOne = 12,
  kArrivesBeforeItReads = 13,
  kCountsBeforeAllHaveRead = 14,
  kEpochNotKept = 15,
  kResultWithoutFence = 16,
  kShortLastChunk = 18,
  // flags.h
  kPublishRelaxed = 20,
  kPublishWithoutFence = 21,
  kPublishWithoutWake = 22,
  kAwaitRelaxed = 23,
  kSpinRelaxed = 24,
  kSleepRelaxed = 25,
  kSleepWithoutAnnouncement = 26,
  kSleepWithoutFence = 27,
  kSleepComparesFreshWord = 28,
  kSleepIgnoresAbort = 29,
  kCompareWithoutWrap = 30,
  // flag_exchange.h
  kOneBuffer = 31,
  kOneGenerationForBothPhases = 32,
  kAwaitBeforePublish = 33,
  kPublishBeforeTiles = 34,
  kAwaitOnlyTheFirst = 35,
  // allreduce_pull.h
  kPullWithoutFirstBarrier = 36,
  kPullWithoutLastBarrier = 37,
  // block_flags.h
  kBlockPublishesAlone = 39,
  kBlockAwaitsAlone = 40,
  kBlockPublishRelaxed = 41,
  kBlockAwaitRelaxed = 42,
  // flags.h, flag_exchange.h: signatures
  kNoLookAtCalls = 46,
  kOneSignature = 47,
  kSignatureNotCompared = 48,
  // pipes.h, transfers.h
  kPipeOneMoreSlot = 49,
  kPipeReleaseBeforeRead = 50,
  kPipePublishBeforeData = 51,
  kBroadcastAwaitsOneReader = 52,
  kTransferSleepWithoutFence = 53,
  kTransferSleepIgnoresAbort = 54,
  kTransferAnnouncesOneFlag = 104,
  kPipeSignatureNotCompared = 55,
  kNoLookAtLaterCalls = 56,
  // allreduce_tree.h
  kTreeResultsShareAPipe = 57,
  kTreeReleasesBeforeItAdds = 58,
  kTreeForgetsTheGroup = 59,
  // ring.h, ring_run.h, ring_links.h
  kRingHeadRelaxed = 60,
  kRingReleasesBeforeItReads = 61,
  kRingSendsBeforeItWrites = 62,
  kRingChannelsShareAPipe = 63,
  kRingCreditsNotCounted = 64,
  kRingTailRelaxed = 65,
  // ll_pipes.h
  kLLChecksOneWord = 66,
  kLLNoWrapClear = 67,
  kLLClearsAfterRelease = 68,
  kLLMarkMayBeZero = 69,
  kLLSignatureNotCompared = 70,
  kLLTailWithoutWake = 71,
  kLLClearsOneLess = 134,
  // ep_links.h, ep_dispatch.h, ep_combine.h
  kEpOneMoreSlot = 72,
  kEpLookRelaxed = 73,
  kEpTailBeforeRows = 74,
  kEpHeadBeforeRead = 75,
  kEpCountsHeadBeforeRead = 76,
  kEpCombineTailBeforeRows = 77,
  kEpCombineHeadBeforeRead = 78,
  kEpOvertakes = 79,
  kEpCombineOvertakes = 80,
  kEpCountsBeforeCredit = 81,
  kEpCountsFlagBeforeCounts = 82,
  kEpTailBeforeCounts = 83,
  kEpEmptyWithoutTail = 84,
  kEpNoLookForDeaths = 85,
  kEpPieceForgets = 86,
  kEpMaskedStillAwaited = 87,
  kEpMissingNotCleared = 88,
  kEpDropIgnoresAbort = 89,
  // flight_record.h
  kRecordNotInvalidated = 90,
  kRecordWithoutFence = 91,
  kRecordNumberRelaxed = 92,
  kRecordDoneRelaxed = 93,
  kRecordDoneReadRelaxed = 94,
  kRecordReadWithoutFence = 95,
  // ep_combine.h
  kEpCombineReleasesEveryToken = 96,
  // flag_exchange.h
  kOfferNotBounded = 97,
  // ep_links.h, ep.h
  kEpTurnsIgnored = 99,
  kEpNumberWithoutWrap = 100,
  // flag_exchange.h
  kRecvNotOffered = 101,
  kReadsWithoutSwap = 102,
  // ep_links.h
  kEpFollowsFirst = 103,
  kEpFollowsEarlier = 133,
  // device_state.h
  kStateTakenInTwoSteps = 105,
  // cells.h
  kCellsOneHalf = 118,
  kCellsWithoutFence = 106,
  kCellsNotCleared = 107,
  kCellsClearedEarly = 108,
  kCellsFirstElementUnchecked = 109,
  kCellsSecondElementUnchecked = 110,
  kCellsSendAllOnes = 111,
  kCellsOnePhase = 112,
  // gpu/context.h, gpu/control.h, gpu/pull.h
  kOneLine = 113,
  kLineChecksOneMark = 114,
  kCallsNotCompared = 115,
  kPullLooksRelaxed = 116,
  kPullAwaitsAlone = 117,
  kEndsWithoutCalls = 131,
  kJoinsAlone = 132,
  // gpu/exchanged.h
  kBroadcastOfChunksAlone = 120,
  // exchange/lanes.h
  kLaneOneMoreSlot = 121,
  kLaneHeadRelaxed = 122,
  kLaneTailRelaxed = 123,
  kLanePublishRelaxed = 124,
  kLaneReleaseRelaxed = 125,
  // gpu/transfers.h, gpu/pipes.h
  kLanePublishBeforeData = 126,
  kLanePublishesAlone = 127,
  kLaneSignatureNotCompared = 128,
  kInPlaceWithoutPair = 129,
  kReduceReleasesAlone = 130,
  // gpu/ep_slots.h, gpu/ep_send.h, gpu/ep_receive.h, gpu/ep_combine_ll.h, gpu/ep_control.h, gpu/ep_dispatch_ll.h
  kGpuEpOneSlot = 150,
  kGpuEpHeaderBeforeRow = 151,
  kGpuEpPublishesAlone = 152,
  kGpuEpPublishWithoutFence = 153,
  kGpuEpLookRelaxed = 154,
  kGpuEpHeaderNotCleared = 155,
  kGpuEpCountsTurnUnchecked = 156,
  kGpuEpHeadNotAwaited = 157,
  kGpuEpHeadBeforeDone = 158,
  kGpuEpEndsWithoutFence = 160,
  kGpuEpCellNotCleared = 162,
  kGpuEpFirstElementUnchecked = 163,
  kGpuEpSecondElementUnchecked = 164,
  // gpu/ep_waits.h, gpu/ep_places.h, gpu/ep_repair.h, gpu/ep_combine_ll.h, gpu/ep_control.h
  kGpuEpFollowsFirst = 165,
  kGpuEpBlocksCountAlone = 166,
  kGpuEpMissingNotCleared = 167,
  kGpuEpThreadsGiveUpAlone = 168,
  // gpu/ep_rings.h, gpu/ep_dispatch_ht.h, gpu/ep_combine_ht.h
  kGpuEpHtCreditsIgnored = 169,
  kGpuEpHtSumCreditsIgnored = 170,
  kGpuEpHtGivesBackEarly = 171,
  kGpuEpHtPublishesAlone = 172,
  kGpuEpHtSumsGivenBackEarly = 173,
  kGpuEpHtTurnUnchecked = 174,
  kGpuEpHtSumsTurnUnchecked = 175,
  kGpuEpHtWaitsBeforeItSends = 176,
  kGpuEpHtCreditsUnordered = 177,
  kGpuEpHtLooksAtOneRank = 178,
  kGpuEpHtAddsTooMany = 179,
};

#if defined(RH_MODEL)
#ifndef RH_MUTANT
#define RH_MUTANT 0
#endif
inline Mutant modelMutant = static_cast<Mutant>(RH_MUTANT);
inline bool mutated(Mutant m) { return modelMutant == m; }
#else
RH_FN constexpr bool mutated(Mutant) { return false; }
#endif

}  // namespace railhead

#endif  // RAILHEAD_KERNELS_MUTANT_H_
